# Every target works from a fresh clone: the first one that needs .venv makes it.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
EXTRAS := cpu,export,tensorrt-rtx,report,words,dev,parity

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench bench-quick clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## export the shipped model, verify it on real text, time memory lengths
	@$(PY) -m txl_export.demo

test: lint ## ruff, mypy and pytest
	$(PY) -m pytest

lint: $(STAMP) ## ruff and mypy only
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(STAMP) ## sort imports, apply safe fixes, format
	$(PY) -m ruff check --fix --exit-zero .
	$(PY) -m ruff format .

# What is measured is kept: each goes on where it stopped. OPTIONS="--minutes 120", OPTIONS=--restart
bench: $(STAMP) ## time this package beside its peers, an hour at a time (OPTIONS=--help)
	@$(PY) -m benchmarks $(OPTIONS)

bench-quick: $(STAMP) ## the same at a few points, in a quarter of an hour
	@$(PY) -m benchmarks --quick $(OPTIONS)

clean: ## remove bundles in engines/, build output and caches; .venv stays
	find engines -mindepth 1 -maxdepth 1 ! -name README.md ! -name recipes -exec rm -rf {} +
	find txl_export tests models benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf build dist benchmarks/.cache .pytest_cache .mypy_cache .ruff_cache .hypothesis

# "ok", or what is wrong with the Python that .venv has or would be made of.
BASE_PYTHON = $(or $(wildcard $(PY)),$(PYTHON))
python_state = $(or $(shell $(BASE_PYTHON) -c 'import sys; v = sys.version_info; \
  sys.stdout.write("ok" if v >= (3, 10) else "is %d.%d" % v[:2])' 2>/dev/null),was not found)
require_python = $(if $(filter ok,$(1)),,$(error txl-export needs Python 3.10 or newer, \
  and $(BASE_PYTHON) $(1): name another with PYTHON=python3.11))

# Remade only when what is installed may have changed.
$(STAMP): pyproject.toml constraints.txt
	$(call require_python,$(python_state))
	@if [ -x $(VENV)/bin/pip ]; then \
	  echo "updating .venv from pyproject.toml and constraints.txt…"; \
	else \
	  echo "creating .venv and installing (a minute or two)…"; \
	  $(PYTHON) -m venv $(VENV); \
	fi
	@$(PY) -m pip install -qq -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
