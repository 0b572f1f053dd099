"""The site of the documents: its navigation is the index, and it builds strictly."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDS_MKDOCS = pytest.mark.skipif(
    importlib.util.find_spec("material") is None, reason="MkDocs is not installed: pip install 'mixbackend[docs]'"
)


def build(tree: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / ".ci" / "docs"), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


def test_the_navigation_is_the_index() -> None:
    index, settings = (ROOT / name for name in ("docs/README.md", "mkdocs.yml"))
    listed = re.findall(r"^- \[([^]]+)\]\(([^)]+)\): ", index.read_text(encoding="utf-8"), re.MULTILINE)
    expected = [(name, (index.parent / path).resolve()) for name, path in listed]
    navigation = settings.read_text(encoding="utf-8").partition("\nnav:\n")[2]
    found = [(name, (ROOT / path).resolve()) for name, path in re.findall(r"^ {6}- (.+): (\S+\.md)$", navigation, re.M)]
    assert [entry for entry in found if entry in expected] == expected


@NEEDS_MKDOCS
@pytest.mark.nightly
def test_it_builds_strictly(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0 and ", 0 links" in done.stdout, done.stdout + done.stderr


@NEEDS_MKDOCS
@pytest.mark.nightly
@pytest.mark.parametrize("link", ["[a](nowhere.md)", "[a](layout.md#no-heading)", "[a](../../examples/nothing)"])
def test_a_link_that_leads_nowhere_fails(link: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in (".ci", "docs", "benchmarks/results", "examples"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml"):
        shutil.copy(path, tree)
    with (tree / "docs" / "reference" / "glossary.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{link}\n")
    assert build(tree, tmp_path / "site").returncode != 0
