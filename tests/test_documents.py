"""The documents: their links lead somewhere, their figures stand where they were measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    p for p in ROOT.glob("**/*.md") if not any(part.startswith(".") for part in p.relative_to(ROOT).parts)
)
RESULTS = ROOT / "benchmarks" / "RESULTS.md"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(document: Path):
    text = document.read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in t]
    assert [t for t in targets if not (document.parent / t).exists()] == []


def test_the_tables_of_the_readme_are_those_of_the_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- from benchmarks/RESULTS.md -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert shown is not None
    results = RESULTS.read_text(encoding="utf-8").splitlines()
    rows = [line for line in shown[1].splitlines() if line.startswith("|")]
    assert len(rows) > 2
    assert [row for row in rows if row not in results] == []
