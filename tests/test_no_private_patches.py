"""No test replaces a private name of ours: what tests vary is an argument, a constant or a backend of their own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOREIGN = "torch"
"""The package whose private names may be all there is to stand in for it."""


def private_patches(source: str) -> Iterator[int]:
    """Lines that replace a private name of a module or class that is not foreign, or a name that only running tells."""
    tree = ast.parse(source)
    foreign = {FOREIGN}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == FOREIGN:
            foreign |= {item.asname or item.name for item in node.names}
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    private = any(isinstance(item, str) and re.fullmatch(r"_[A-Za-z]\w*", item) for item in constants)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _replaces(ast.unparse(node.func)):
            first, *others = _replaced(node.args, "_unknown" if private else "unknown").split(".")
            if first not in foreign and any(part.startswith("_") and part[1:2] != "_" for part in others):
                yield node.lineno


def _replaces(function: str) -> bool:
    return function.endswith(("setattr", "delattr", "mock.patch", "patch.object"))


def _replaced(arguments: list[ast.expr], unknown: str) -> str:
    """The dotted path of what is replaced; names in variables are ``unknown``."""
    owner, *rest = arguments
    if isinstance(owner, ast.Constant):
        return str(owner.value)
    name = str(rest[0].value) if rest and isinstance(rest[0], ast.Constant) else unknown
    return f"{ast.unparse(owner)}.{name}"


def test_no_private_name_of_ours_is_replaced() -> None:
    paths = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("test_*.py")]
    assert len(paths) > 200
    found = [f"{path.relative_to(ROOT)}:{line}" for path in sorted(paths) for line in private_patches(path.read_text())]
    assert not found, "give what it needs to vary an argument, see CONTRIBUTING.md"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('monkeypatch.setattr(module, "_name", 1)', 1),
        ('monkeypatch.setattr("mixbackend.module._name", 1)', 1),
        ('monkeypatch.setattr(module._held, "name", 1)', 1),
        ('mock.patch.object(module, "_name", 1)', 1),
        ('mock.patch("mixbackend.module._name")', 1),
        ('for name in ["_name"]:\n    monkeypatch.setattr(module, name, 1)', 1),
        ('for name in ["name"]:\n    monkeypatch.setattr(module, name, 1)', 0),
        ('monkeypatch.setattr(module, "name", 1)', 0),
        ('monkeypatch.setattr(Class, "__call__", 1)', 0),
        ('monkeypatch.setattr(torch.cpu, "_is_supported", 1)', 0),
        ('from torch.fx import Graph\nmonkeypatch.setattr(Graph, "_name", 1)', 0),
        ("record.update(_name=1)", 0),
    ],
)
def test_private_patches_are_seen(source: str, count: int) -> None:
    assert len(list(private_patches(source))) == count
