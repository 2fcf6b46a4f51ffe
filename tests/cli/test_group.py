"""The command as a whole: what --help costs, how errors end, whether words and defaults are those of the API."""

from __future__ import annotations

import inspect
import shlex
import subprocess
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

import txl_export
from tests.cli.conftest import Run
from txl_export import errors
from txl_export.cli import main
from txl_export.cli._group import VERBS
from txl_export.runtime import Session

HEAVY = {"numpy", "torch", "rich", "onnx", "onnxruntime", "safetensors"}


def verb(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


def imported_after(code: str) -> set[str]:
    """Modules of a fresh process after running code."""
    script = f"import sys\n{code}\nprint('MODULES', *sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return set(out.rpartition("MODULES")[2].split())


def test_help_imports_no_verb_and_nothing_heavy():
    found = imported_after("from txl_export.cli import main\nmain(['--help'], standalone_mode=False)")
    assert not found & HEAVY
    assert not {f"txl_export.cli.{v}" for v in VERBS} & found


def test_the_help_of_verbs_imports_nothing_heavy():
    found = imported_after(
        f"from txl_export.cli import main\nfor verb in {list(VERBS)}: main([verb, '--help'], standalone_mode=False)"
    )
    assert {f"txl_export.cli.{v}" for v in VERBS} <= found
    assert not found & HEAVY


def test_python_m_runs_the_same_command():
    command = [sys.executable, "-m", "txl_export", "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out == f"txl-export, version {txl_export.__version__}\n"


def test_help_lists_every_verb(run: Run):
    shown = " ".join(run("--help").stdout.split())
    for name, about in VERBS.items():
        assert f"{name} {about}" in shown


@pytest.mark.parametrize("name", VERBS)
def test_the_listed_help_is_the_verb_s_own(name: str):
    assert (verb(name).help or "").splitlines()[0] == VERBS[name]


@pytest.mark.parametrize("name", VERBS)
def test_examples_are_commands_that_parse(name: str, run: Run):
    lines = [line.strip() for line in (verb(name).epilog or "").splitlines() if "txl-export" in line]
    assert len(lines) >= 2
    for line in lines:
        assert line in run(name, "--help").stdout  # unwrapped, to copy
        program, called, *args = shlex.split(line.partition(" < ")[0])
        assert (program, called) == ("txl-export", name)
        verb(name).make_context(name, args)  # raises UsageError


def test_an_unknown_verb_is_wrong_use(run: Run):
    result = run("explode")
    assert result.exit_code == 2
    assert "explode" in result.stderr


@pytest.fixture
def failing(run: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a verb that raises something."""

    def call(error: BaseException) -> Any:
        def callback(**_: object) -> None:
            raise error

        monkeypatch.setattr(verb("score"), "callback", callback)
        return run("score", "model", "text")

    return call


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ToleranceError("out of\ntolerance"), 1),
        (errors.InputError("out of\ntolerance"), 2),
        (errors.BundleError("out of\ntolerance"), 2),
        (errors.EnvironmentMismatch("out of\ntolerance"), 3),
    ],
)
def test_errors_raised_on_purpose_are_one_line(failing: Any, error: errors.TxlError, code: int):
    result = failing(error)
    assert (result.exit_code, result.stderr, result.stdout) == (code, "error: out of tolerance\n", "")


@pytest.mark.parametrize(
    ("module", "install"),
    [
        ("torch", "pip install 'txl-export[export]'"),
        ("onnxruntime.capi", "pip install 'txl-export[cpu]'"),
        ("rich", "pip install txl-export"),
    ],
)
def test_a_missing_package_names_what_installs_it(failing: Any, module: str, install: str):
    result = failing(ModuleNotFoundError(f"No module named '{module}'", name=module))
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert install in result.stderr


def test_a_missing_module_of_our_own_is_a_mistake_to_see(failing: Any):
    error = ModuleNotFoundError("No module named 'txl_export.nothing'", name="txl_export.nothing")
    assert failing(error).exception is error


def test_files_that_cannot_be_used_are_one_line(failing: Any):
    result = failing(PermissionError(13, "Permission denied", "secret.npy"))
    assert (result.exit_code, result.stderr) == (2, "error: secret.npy cannot be used (Permission denied)\n")


def test_ctrl_c_ends_as_shells_expect(failing: Any):
    result = failing(KeyboardInterrupt())
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


# Options under another name than the argument, or none at all in the API.
RENAMED = {"text_file": "text", "ids_file": "ids", "seed": "random", "heads": "head", "calibration_file": "calibration"}


def defaults(name: str) -> dict[str, Any]:
    """Values of a verb's options when none is given, by the API's names."""
    command = verb(name)
    required = {"export": ["c", "-o", "o"], "verify": ["b"], "bench": ["t"], "generate": ["b"]}[name]
    params = command.make_context(name, required).params
    return {RENAMED.get(k, k) if name != "generate" else k: v for k, v in params.items()}


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("export", lambda: txl_export.export),
        ("verify", lambda: txl_export.verify),
        ("bench", lambda: txl_export.bench),
        ("generate", lambda: Session.generate),
    ],
)
def test_options_have_the_words_and_defaults_of_the_api(name: str, function: Any):
    given = defaults(name)
    optional = {k: p.default for k, p in inspect.signature(function()).parameters.items() if p.default is not p.empty}
    optional = {k: v for k, v in optional.items() if k not in ("progress", "log")}
    assert set(optional) <= set(given)
    for argument, default in optional.items():
        assert plain(given[argument]) == plain(default), argument


def plain(value: Any) -> Any:
    """Lists flattened to what they name: "log_probs" and (("log_probs",),) are one head."""
    if isinstance(value, list | tuple):
        flat = [x for v in value for x in (v if isinstance(v, list | tuple) else [v])]
        return str(flat[0]) if len(flat) == 1 else [str(x) for x in flat]
    return str(value) if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["bench", "m", "--mem-lens", "x"], "error: Invalid value for '--mem-lens': 'x' is no list of whole numbers"),
        (["report", "b"], "error: Missing option '-o' / '--out': see 'txl-export report --help'"),
        (["verify", "b", "--nonsense"], "error: No such option"),
        (["nonsense"], "error: No such command 'nonsense': see 'txl-export --help'"),
    ],
)
def test_wrong_usage_is_one_line(args: list[str], said: str):
    result = CliRunner().invoke(main, args, prog_name="txl-export")
    assert result.exit_code == 2
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1 and "--help'" in result.stderr
