"""Who imports whom, read off the text of every file: for the tests of the layout.

An import anywhere in a file counts, those inside functions and those for types alone included. A name taken from a
package is an edge to the package's front (its ``__init__``) and, if the name is a module, to that as well; from the
front of the whole project only the latter, since it imports nothing that it does not load at first use.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("contracts", "partitioner", "backends", "mixbackend", "benchmarks")
PROJECT = "mixbackend"

Edges = Mapping[str, frozenset[str]]
"""Dotted names of modules, and of the modules that each imports."""


def sources(*folders: str) -> list[Path]:
    """The Python files of some top-level folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file; read once for all tests, never changed."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements of a module, wherever they stand; expressions are not looked into."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        for block in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(node, block, ())
            waiting += inner if isinstance(inner, list) else ()


def imported(tree: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports; ``from a import b`` counts as ``a.b``."""
    for node in imports(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    """``mixbackend.contracts.graph`` for ``contracts/graph.py``; a package's front is called as the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == PROJECT else (PROJECT, *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def import_graph() -> Edges:
    """The import graph of the whole project."""
    paths = {module_name(path): path for path in sources(*PARTS)}
    return {name: frozenset(targets(parsed(path), paths) - {name}) for name, path in paths.items()}


def targets(tree: ast.Module, modules: Mapping[str, object]) -> set[str]:
    """The modules of the project that a module imports."""
    found: set[str] = set()
    for node in imports(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.update({node.module} - {PROJECT})
    return found.intersection(modules)


def cycle(edges: Edges) -> list[str]:
    """The modules of a shortest circle of imports, each importing the next; empty if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        start = error.args[1][0]
        return min((way(edges, other, start) for other in edges[start]), key=lambda names: len(names) or len(edges))
    return []


def way(edges: Edges, start: str, end: str) -> list[str]:
    """The modules on a shortest way along imports, both ends included; empty if there is none."""
    came_from = {start: ""}
    waiting = deque([start])
    while waiting and end not in came_from:
        name = waiting.popleft()
        for other in sorted(edges.get(name, ())):
            if other not in came_from:
                came_from[other] = name
                waiting.append(other)
    names = [end] if end in came_from else []
    while names and came_from[names[0]]:
        names.insert(0, came_from[names[0]])
    return names


def without(edges: Edges, removed: Iterable[tuple[str, str]]) -> Edges:
    """The graph without some of its edges."""
    gone = set(removed)
    return {name: frozenset(other for other in others if (name, other) not in gone) for name, others in edges.items()}
