"""Measured tables stand under ``benchmarks/results``, each page with its command, machine, versions and date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
MADE = "conformance.md"
"""Written by ``mixbackend.benchmarks.conformance page``, with its own heading."""


@pytest.mark.parametrize("page", [page for page in RESULTS if page.name != MADE], ids=lambda page: page.stem)
def test_a_page_says_where_its_figures_come_from(page: Path) -> None:
    above = page.read_text(encoding="utf-8").split("\n|")[0]
    assert "```\n" in above or "The command was not recorded." in above
    for fact in (r"machines?: \S", r"versions: \S", r"entered: 20\d\d-\d\d-\d\d"):
        assert re.search(rf"^- {fact}", above, re.MULTILINE), fact


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_documents_have_no_measured_table(page: Path) -> None:
    """A row with two cells that are decimal fractions is a row of measurements."""
    rows = re.findall(r"^\|.*\|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [row for row in rows if len(re.findall(r"\| *\d+\.\d+ *(?=\|)", row)) > 1] == []
