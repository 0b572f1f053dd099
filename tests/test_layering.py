"""The import arrows of the layout: who may import whom, nothing bare, private torch names through one door."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("contracts", "partitioner", "backends", "mixbackend", "benchmarks")
ALLOWED = {
    "contracts": ("mixbackend.contracts",),
    "partitioner": ("mixbackend.contracts", "mixbackend.partitioner"),
    "backends": ("mixbackend.contracts", "mixbackend.backends.common"),
}
DOOR = ROOT / "contracts" / "torch_compat"


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a module imports; ``from a import b`` counts as ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def reached(tree: ast.AST) -> Iterator[str]:
    """Dotted names that start at ``torch``, imported or written out."""
    yield from imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text.startswith("torch."):
                yield text


def is_private(name: str) -> bool:
    """Whether a name is torch's own business. Operators are not: ``torch.ops.aten._softmax`` is what graphs hold."""
    parts = name.split("(")[0].split(".")
    if parts[0] != "torch" or parts[:2] == ["torch", "ops"]:
        return False
    return any(part.startswith("_") and not part.startswith("__") for part in parts)


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("part", ALLOWED)
def test_arrows(part: str) -> None:
    wrong = []
    for path in sources(part):
        folder = path.relative_to(ROOT).parent
        own = f"mixbackend.{'.'.join(folder.parts[:2])}" if len(folder.parts) > 1 else ""
        allowed = (*ALLOWED[part], *((own,) if own else ()))
        names = [
            name for name in imported(ast.parse(path.read_text())) if name[0] == "." or within(name, ("mixbackend",))
        ]
        wrong += [f"{path.relative_to(ROOT)}: {name}" for name in names if not within(name, allowed)]
    assert wrong == []


def import_graph(root: Path, parts: tuple[str, ...] = PARTS) -> networkx.DiGraph:
    """Files and what they import, lazily and for types alone too; ``from a import b`` leads to ``a`` and to ``a.b``."""
    files = {}
    for part in parts:
        for path in sorted((root / part).rglob("*.py")):
            names = path.relative_to(root).with_suffix("").parts
            names = names if part == "mixbackend" else ("mixbackend", *names)
            files[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    graph = networkx.DiGraph()
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                reached_names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                reached_names = [alias.name for alias in node.names]
            else:
                continue
            graph.add_edges_from((module, name) for name in reached_names if name in files and name != module)
    return graph


def circles(graph: networkx.DiGraph) -> list[list[str]]:
    """Files that import one another, directly or by way of others."""
    return sorted(sorted(names) for names in networkx.strongly_connected_components(graph) if len(names) > 1)


def test_no_file_outside_the_upper_half_is_in_a_circle_of_imports() -> None:
    lower = tuple(f"mixbackend.{part}" for part in PARTS if part != "mixbackend")
    graph = import_graph(ROOT)
    assert len(graph) > 300
    assert [names for names in circles(graph) if any(within(name, lower) for name in names)] == []


def test_circles_are_seen_through_fronts_and_late_imports(tmp_path: Path) -> None:
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "__init__.py").write_text("from mixbackend.contracts.first import x\n")
    (folder / "first.py").write_text("def late():\n    from mixbackend.contracts import second\n")
    (folder / "second.py").write_text("import mixbackend.contracts.third\n")
    (folder / "third.py").write_text("")
    found = circles(import_graph(tmp_path, ("contracts",)))
    assert found == [["mixbackend.contracts", "mixbackend.contracts.first"]]


def test_nothing_is_imported_bare() -> None:
    bare = tuple(part for part in PARTS if part != "mixbackend")
    paths = sources(*PARTS, "tests", "examples")
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        for name in imported(ast.parse(path.read_text()))
        if within(name, bare)
    ]
    assert len(paths) > 50
    assert wrong == []


def test_private_torch_names_come_through_one_door() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(*PARTS, "examples")
        if path.parent != DOOR
        for name in reached(ast.parse(path.read_text()))
        if is_private(name)
    ]
    assert wrong == []


def test_the_check_itself_sees_what_it_should() -> None:
    tree = ast.parse(
        "import torch._dynamo as d\nfrom torch.fx import _x\nfrom . import y\n"
        "print(torch.ops.aten._softmax, torch.utils._pytree.tree_map(f), torch.nn.Linear.__init__)"
    )
    assert sorted({name for name in reached(tree) if is_private(name)}) == [
        "torch._dynamo",
        "torch.fx._x",
        "torch.utils._pytree",
        "torch.utils._pytree.tree_map",
    ]
    assert "..y" in imported(tree)
