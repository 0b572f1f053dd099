"""Reads a lock file and says everything that is wrong with it.

Place: in front of ``lock`` and ``mixbackend tune``. Input: a file that people may have edited. Output: ``LockFile``, or
one error with every problem, by file, line and column.
Invariants: nothing in the file is executed, no aliases are followed out of bounds; what is returned agrees with itself
(counts of ops with nodes, every node in one region, regions on backends that the file lists).
Non-goals: whether plans fit their graphs; see ``partitioner.plan_revalidation``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml.error import YAMLError

from mixbackend.configuration.document import Document, read_file
from mixbackend.configuration.problems import ConfigurationProblemsError, Path, Problem, explain_pydantic
from mixbackend.contracts import LockError
from mixbackend.locking.model import LockedGraph, LockedJoint, LockedRegion, LockFile, MadeWith, place_of
from mixbackend.locking.safe_yaml import safe_yaml
from mixbackend.nearest_name import did_you_mean

_NODE = re.compile(r"[^\s@]+@[0-9]+")
_KEYS = tuple(LockFile.model_fields)
Found = Iterator[tuple[Path, str]]


class LockProblemsError(LockError):
    """A lock file is damaged; ``problems`` holds all that was found."""

    def __init__(self, path: str, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column, str(problem))))
        count = len(self.problems)
        found = "\n".join(f"    {problem}" for problem in self.problems)
        super().__init__(
            what=f"{count} problem{'s' if count > 1 else ''} in the lock file\n{found}",
            hint=f"put back what was reviewed, or make {path} anew: mixbackend tune MODEL --lock {path}",
        )


def read_lock(path: str | os.PathLike[str]) -> LockFile:
    """Read a file.

    Raises:
        LockError: there is none, or it is damaged; with every problem.
    """
    name = os.fspath(path)
    file, problems = _checked(_quickly(name))
    if file is not None and not problems:
        return file
    # Once more, by a reader that knows where things stand: it is several times as slow.
    try:
        document = read_file(name)
    except ConfigurationProblemsError as error:
        raise LockProblemsError(name, error.problems) from error
    file, problems = _checked(document.data)
    if file is not None and not problems and not document.problems:
        return file
    raise LockProblemsError(name, [*document.problems, *_placed(document, problems)])


def _quickly(name: str) -> Any:
    """The plain data of a file; ``None`` where the slow reader should have a look."""
    try:
        text = FilePath(name).read_text(encoding="utf-8")
        # Aliases need an anchor; the slow reader bounds what they expand to.
        return None if "&" in text else safe_yaml().load(text)
    except (OSError, ValueError, RecursionError, YAMLError):
        return None


def _placed(document: Document, problems: Iterable[tuple[Path, str]]) -> list[Problem]:
    said = [problem.path for problem in document.problems]
    new = [entry for entry in problems if not any(entry[0][: len(path)] == path for path in said)]
    return [document.problem(path, text, at_key=text.startswith("unknown key")) for path, text in new]


def _checked(data: Any) -> tuple[LockFile | None, list[tuple[Path, str]]]:
    """The file, unless some part of it has no form; and all that is wrong."""
    if not isinstance(data, Mapping):
        return None, [((), "should be a mapping with keys version, made_with and graphs")] if data is not None else []
    found: list[tuple[Path, str]] = [
        ((key,), f"unknown key; {did_you_mean(str(key), _KEYS)}") for key in data if key not in _KEYS
    ]
    if data.get("version") != 1 or isinstance(data.get("version"), bool):
        found.append((("version",), f"should be 1; got {data.get('version')!r}"))
    made_with = _part(MadeWith, data.get("made_with"), ("made_with",), found)
    items = data.get("graphs")
    if not isinstance(items, (list, tuple)):
        found.append((("graphs",), f"should be a list of graphs; got {items!r}"))
        items = ()
    graphs = [_part(LockedGraph, item, ("graphs", index), found) for index, item in enumerate(items)]
    joints = _joints(data.get("joints", ()), found)
    listed = {backend.name for backend in made_with.backends} if made_with is not None else None
    for index, graph in enumerate(graphs):
        if graph is not None:
            found += [(("graphs", index, *path), message) for path, message in _graph_problems(graph, listed)]
    found += _repeated(graphs)
    whole = [graph for graph in graphs if graph is not None]
    if made_with is None or len(whole) < len(graphs):
        return None, found
    return LockFile(made_with=made_with, joints=joints, graphs=tuple(whole)), found


def _joints(items: Any, found: list[tuple[Path, str]]) -> tuple[LockedJoint, ...]:
    if not isinstance(items, (list, tuple)):
        found.append((("joints",), f"should be a list; got {items!r}"))
        return ()
    joints = [_part(LockedJoint, item, ("joints", index), found) for index, item in enumerate(items)]
    for index, joint in enumerate(joints):
        if joint is not None:
            for key, names in (("saved", joint.saved), ("recomputed", joint.recomputed)):
                found += [(("joints", index, key, *path), message) for path, message in _not_nodes(names)]
    return tuple(joint for joint in joints if joint is not None)


def _part(kind: type[Any], data: Any, path: Path, found: list[tuple[Path, str]]) -> Any:
    if not isinstance(data, Mapping):
        found.append((path, "is missing" if data is None else f"should be a mapping; got {data!r}"))
        return None
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        for entry in error.errors(include_url=False):
            inner, message = _explained(entry, kind)
            found.append(((*path, *inner), message))
    return None


def _explained(entry: Any, kind: type[BaseModel]) -> tuple[Path, str]:
    if entry["type"] == "string_pattern_mismatch":
        return tuple(entry["loc"]), f"should be 64 hexadecimal digits; got {entry['input']!r}"
    return explain_pydantic(entry, kind)


def _repeated(graphs: Iterable[LockedGraph | None]) -> Found:
    first: dict[str, str] = {}
    for index, graph in enumerate(graphs):
        if graph is None:
            continue
        if graph.key in first:
            yield ("graphs", index, "key"), f"is that of {first[graph.key]} too; a graph has one entry"
        first.setdefault(graph.key, graph.graph)


def _graph_problems(graph: LockedGraph, listed: set[str] | None) -> Found:
    """What does not agree within one entry."""
    owner: dict[int, tuple[str, str]] = {}
    ids: set[str] = set()
    for index, region in enumerate(graph.regions):
        path: Path = ("regions", index)
        if region.region in ids:
            yield (*path, "region"), f"{region.region} is there twice"
        ids.add(region.region)
        if listed is not None and region.backend not in listed:
            message = f"made_with.backends does not list {region.backend!r}; {did_you_mean(region.backend, listed)}"
            yield (*path, "backend"), message
        malformed = list(_malformed(region))
        yield from (((*path, *inner), message) for inner, message in malformed)
        if not malformed:
            yield from (((*path, *inner), message) for inner, message in _region_problems(region, owner))


def _malformed(region: LockedRegion) -> Found:
    listed: list[tuple[Path, tuple[str, ...]]] = [(("nodes", module), names) for module, names in region.nodes.items()]
    listed.append((("copies",), region.copies))
    listed += [(("matches", index, "nodes"), match.nodes) for index, match in enumerate(region.matches)]
    for path, names in listed:
        yield from (((*path, *inner), message) for inner, message in _not_nodes(names))


def _not_nodes(names: Iterable[str]) -> Found:
    for index, name in enumerate(names):
        if not _NODE.fullmatch(name):
            yield (index,), f"should be an operator and its place, as aten.mm.default@3; got {name!r}"


def _region_problems(region: LockedRegion, owner: dict[int, tuple[str, str]]) -> Found:
    for module, names in region.nodes.items():
        for index, name in enumerate(names):
            place = place_of(name)
            if place in owner:
                other, home = owner[place]
                yield ("nodes", module, index), f"{name} is in {home} already" + (f" as {other}" * (other != name))
            owner.setdefault(place, (name, region.region))
    counted = Counter(name.rpartition("@")[0] for names in region.nodes.values() for name in names)
    for op in sorted({*counted, *region.ops}):
        if counted[op] != region.ops.get(op, 0):
            yield ("ops",), f"says {op} {region.ops.get(op, 0)} times, nodes hold it {counted[op]} times"
    inside = {name for names in region.nodes.values() for name in names} | set(region.copies)
    for index, match in enumerate(region.matches):
        strangers = [name for name in match.nodes if name not in inside]
        if strangers:
            yield ("matches", index, "nodes"), f"{', '.join(strangers)} is not in the region"
