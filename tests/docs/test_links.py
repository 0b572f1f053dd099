"""Links of the documents lead to files and headings that are there, and the index lists every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
INDEX = ROOT / "docs" / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *RESULTS.glob("*.md")])
CODE = ("contracts", "mixbackend", "partitioner", "backends", "benchmarks", "tests", "examples")
KINDS = ("tutorials", "how-to", "reference", "explanation")


def links(page: Path) -> list[tuple[Path, str]]:
    """Files that a page links to, with the heading."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text)
    return [(page.parent / path if path else page, heading) for path, heading in found if ":" not in path]


def headings(page: Path) -> set[str]:
    """Headings of a page as its anchors."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    missing = [str(path) for path, _ in links(page) if not path.exists()]
    assert missing == []
    lost = [
        (path.name, name) for path, name in links(page) if name and path.suffix == ".md" and name not in headings(path)
    ]
    assert lost == []


def test_the_index_lists_every_page_in_one_line() -> None:
    listed = [
        (INDEX.parent / path).resolve() for path in re.findall(r"^- \[[^]]+\]\(([^)]+)\): \S", INDEX.read_text(), re.M)
    ]
    expected = {page.resolve() for page in PAGES if page.parent.name in KINDS or page.parent == RESULTS}
    assert len(listed) == len(set(listed))
    assert set(listed) == expected


def test_named_pages_exist() -> None:
    """In docstrings, messages and scripts, which no link checker reads."""
    code = [path for part in CODE for path in (ROOT / part).rglob("*.py")]
    files = [*code, *ROOT.glob("*.md"), *(ROOT / ".ci").iterdir()]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path.is_file()}
    names = {name for text in texts.values() for name in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", text)}
    assert len(names) > 10
    assert sorted(name for name in names if not (ROOT / name).exists()) == []
