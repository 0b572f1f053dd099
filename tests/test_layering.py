"""The import arrows of the layout: who imports whom, no circles, nothing bare, private torch names through one door."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest
from import_graph import (
    PARTS,
    ROOT,
    cycle,
    import_graph,
    imported,
    parsed,
    sources,
    targets,
    way,
    without,
)

ALLOWED = {
    "contracts": ("mixbackend.contracts",),
    "partitioner": ("mixbackend.contracts", "mixbackend.partitioner"),
    "backends": ("mixbackend.contracts", "mixbackend.backends.common"),
}
DOOR = ROOT / "contracts" / "torch_compat"

ROOMS: tuple[tuple[str, ...], ...] = (
    ("host", "nearest_name"),
    ("storage",),
    ("registry", "plug_in_source"),
    ("configuration",),
    ("reporting",),
    ("graph",),
    ("cost",),
    ("execute",),
    ("calibrate",),
    ("plan",),
    ("select",),
    ("locking",),
    ("compile",),
    ("package",),
    ("certify",),
    ("minify",),
    ("api", "callable_packages", "cli", "commands", "__init__", "__main__"),
)
"""Folders and files of ``mixbackend/`` from the ground up: each imports from its own room and those before it."""


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
        names = [name for name in imported(parsed(path)) if name[0] == "." or within(name, ("mixbackend",))]
        wrong += [f"{path.relative_to(ROOT)}: {name}" for name in names if not within(name, allowed)]
    assert wrong == []


def test_nothing_is_imported_bare() -> None:
    bare = tuple(part for part in PARTS if part != "mixbackend")
    paths = sources(*PARTS, "tests", "examples")
    wrong = [
        f"{path.relative_to(ROOT)}: {name}" for path in paths for name in imported(parsed(path)) if within(name, bare)
    ]
    assert len(paths) > 50
    assert wrong == []


def test_private_torch_names_come_through_one_door() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(*PARTS, "examples")
        if path.parent != DOOR
        for name in reached(parsed(path))
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


def room(module: str) -> int:
    """Place of a module's room in ``ROOMS``; what is no room of ``mixbackend/`` lies below all."""
    parts = module.split(".")
    outside = len(parts) > 1 and parts[1] in PARTS
    name = parts[1] if len(parts) > 1 else "__init__"
    return -1 if outside else next(place for place, names in enumerate(ROOMS) if name in names)


def upward() -> set[tuple[str, str]]:
    """The imports inside ``mixbackend/`` that go to a later room."""
    return {
        (name, other)
        for name, others in import_graph().items()
        for other in others
        if room(name) >= 0 and room(other) > room(name)
    }


def arrows(edges: Iterable[tuple[str, str]]) -> list[str]:
    return sorted(f"{name} -> {other}" for name, other in edges)


def test_every_file_of_the_project_has_a_room() -> None:
    names = {
        item.stem for item in (ROOT / "mixbackend").iterdir() if item.suffix == ".py" or (item / "__init__.py").exists()
    }
    assert names == {name for names in ROOMS for name in names}


def test_rooms_import_what_is_below_them() -> None:
    assert arrows(upward()) == [], "move what is imported down, or what imports it up"


def test_no_circle_of_imports() -> None:
    edges = import_graph()
    assert len(edges) > 500
    assert cycle(edges) == [], "each imports the next, the last the first; remove one of these imports"


def test_the_graph_sees_circles_and_the_shortest_way() -> None:
    edges = {name: frozenset(others) for name, others in {"a": "bc", "b": "c", "c": "d", "d": "a"}.items()}
    assert cycle(edges) in (["a", "c", "d"], ["c", "d", "a"], ["d", "a", "c"])
    assert cycle(without(edges, {("d", "a")})) == [] and way(edges, "b", "a") == ["b", "c", "d", "a"]


def test_the_graph_counts_fronts_submodules_and_lazy_imports() -> None:
    tree = ast.parse("from m.p import s, name\ndef f():\n    if x:\n        import m.q\n    from mixbackend import api")
    modules = dict.fromkeys(("m", "m.p", "m.p.s", "m.q", "mixbackend", "mixbackend.api"))
    assert targets(tree, modules) == {"m.p", "m.p.s", "m.q", "mixbackend.api"}
