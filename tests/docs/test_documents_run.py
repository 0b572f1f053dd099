"""Code blocks of the tutorials, and of three more pages, run in order, each page in processes of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from document_blocks import blocks_of, missing, needs_of, run_page

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "docs" / "reference" / "backend_contract.md"
HOW_TO = ROOT / "docs" / "how-to"
PAGES = [*sorted((ROOT / "docs" / "tutorials").glob("*.md")), HOW_TO / "export.md", HOW_TO / "minify.md", CONTRACT]
LONG = ("write_a_backend", "trainers", "training", "export", "minify")
"""One installs a package and starts four processes; the contract's page holds what it computes. What other pages and
blocks with packages of their own do, ``tests/clients``, ``tests/package`` and ``tests/minify`` do."""
CASES = [
    pytest.param(
        page,
        need,
        id=f"{page.stem}-{need or 'alone'}",
        marks=[pytest.mark.nightly] if need or page.stem in LONG else [],
    )
    for page in PAGES
    for need in (None, *needs_of(page))
]


@pytest.mark.parametrize(("page", "need"), CASES)
def test_blocks_run(page: Path, need: str | None, tmp_path: Path) -> None:
    if need and missing(need):
        pytest.skip(f"{need} is not installed, which blocks of {page.name} need")
    run_page(page, tmp_path / "work", need)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_the_packages_that_its_blocks_need(page: Path) -> None:
    assert any(block.language in ("python", "bash") for block in blocks_of(page))
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert [need for need in needs_of(page) if f"`pip install {need}" not in prose] == []


def test_the_entry_point_is_the_examples_own() -> None:
    (entry,) = [block.text for block in blocks_of(CONTRACT) if block.language == "toml"]
    assert entry.strip() in (ROOT / "examples" / "vendor_openvino" / "pyproject.toml").read_text()


def test_files_named_in_the_contract_exist() -> None:
    paths = re.findall(r"`(tests/[\w/]+\.py)`", CONTRACT.read_text(encoding="utf-8"))
    assert paths and all((ROOT / path).exists() for path in paths)


def test_a_block_that_fails_fails_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nassert False, 'told'\n```\n")
    with pytest.raises(AssertionError, match="told"):
        run_page(page, tmp_path / "work")
