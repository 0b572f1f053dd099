"""Code blocks of all pages, run in order, each page in processes of its own; and the pages whose code is not run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from document_blocks import blocks_of, missing, needs_of, run_page

from mixbackend.benchmarks.models.registry import find

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONTRACT = DOCS / "reference" / "backend_contract.md"
READERS = """\
from collections import OrderedDict
from pathlib import Path

import torch

import mixbackend

Path("prefs.yaml").write_text("backends: [codegen, eager]\\n")
attention = OrderedDict(attention=torch.nn.Linear(16, 16), act=torch.nn.ReLU())
layers = torch.nn.Sequential(OrderedDict({"0": torch.nn.Sequential(attention)}))
encoder = torch.nn.Sequential(OrderedDict(layer=layers))
model = torch.nn.Sequential(OrderedDict(encoder=encoder)).eval()
x = torch.randn(4, 16)
inputs = x
torch.set_grad_enabled(False)
"""
"""What pages take as the reader's own: a model, its inputs, a file of preferences."""
TUPLE = READERS.replace("inputs = x", "inputs = (x,)")
BEFORE = {
    "tuning": READERS,
    "configuration": READERS,
    "live": READERS,
    "explain": TUPLE,
    "README": READERS,
    "cache": READERS,
}
SHORT = ("first_model", "backend_contract", "configuration")
"""Pages that run by day. What the others do, ``tests/clients``, ``tests/package``, ``tests/minify``, ``tests/cli``,
``tests/locking`` and ``tests/storage`` hold by day."""
NOT_RUN = {
    "distributed": "several ranks, a fragment of each job; benchmarks/distributed and tests/clients run whole ones",
    "gpu": "a GPU, and two lines; tests/gpu runs them",
    "code_generator": "run by test_code_generator, in this process",
}
"""Pages with Python whose blocks are not run here, and why."""
WITH_CODE = [
    page
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    if any(block.language == "python" or "run" in block.words for block in blocks_of(page))
]
PAGES = [page for page in WITH_CODE if page.stem not in NOT_RUN]
CASES = [
    pytest.param(
        page,
        need,
        id=f"{page.stem}-{need or 'alone'}",
        marks=[pytest.mark.nightly] if need or page.stem not in SHORT else [],
    )
    for page in PAGES
    for need in (None, *needs_of(page))
]


@pytest.mark.parametrize(("page", "need"), CASES)
def test_blocks_run(page: Path, need: str | None, tmp_path: Path) -> None:
    if need and missing(need):
        pytest.skip(f"{need} is not installed, which blocks of {page.name} need")
    run_page(page, tmp_path / "work", need, BEFORE.get(page.stem, ""))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_the_packages_that_its_blocks_need(page: Path) -> None:
    assert any(block.language in ("python", "bash") for block in blocks_of(page))
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert [need for need in needs_of(page) if f"`pip install {need}" not in prose] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.stem)
def test_commands_name_models_that_there_are(page: Path) -> None:
    """Of blocks that are not run, too. ``dump`` is a folder."""
    commands = r"^(?:mixbackend (?:explain|tune|export|minify)) (\w[\w-]*)(?= |$)"
    for name in set(re.findall(commands, page.read_text(encoding="utf-8"), re.MULTILINE)) - {"MODEL", "dump"}:
        find(name)


def test_what_is_said_of_pages_is_of_pages_with_code() -> None:
    assert {*BEFORE, *SHORT, *NOT_RUN} <= {page.stem for page in WITH_CODE}


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
