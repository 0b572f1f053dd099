"""``docs/reference/layout.md`` names every folder of code, and no path that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("contracts", "mixbackend", "partitioner", "backends", "benchmarks")
TEXT = (ROOT / "docs" / "reference" / "layout.md").read_text(encoding="utf-8")
CODE = {".py", ".json", ".md", ".cpp", ".hpp", ".tsv"}


def folders(part: str) -> set[str]:
    """Folders of a part that hold files of the project, as the page writes them."""
    files = [path for path in (ROOT / part).rglob("*") if path.suffix in CODE]
    return {f"{path.parent.relative_to(ROOT)}/" for path in files}


@pytest.mark.parametrize("part", PARTS)
def test_every_folder_has_one_line(part: str) -> None:
    rows = re.findall(rf"^\| `({part}/[\w/]*)` \| \S", TEXT, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == folders(part), "a row per folder in docs/reference/layout.md"


def test_every_named_path_exists() -> None:
    names = re.findall(r"`(\.?[\w]+/[\w/.]*)`", TEXT)
    assert len(names) > len(PARTS)
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_no_line_is_about_a_file() -> None:
    assert re.findall(r"^.*`[\w/]+\.(?:py|cpp|hpp)`.*$", TEXT, re.MULTILINE) == []
