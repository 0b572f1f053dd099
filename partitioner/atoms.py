"""Atoms: the pieces that are placed as one.

Place: after judging. Input: ``Candidates``. Output: ``Atoms``.
An atom is one op that computes something (its core) with what moves no data and follows it: the ``getitem`` nodes that
take its outputs apart, and the views of its outputs. Views of graph inputs, and small constants made from nothing, are
replicable: they belong to the atom of their first consumer and are copied into the regions of the others.
Invariants: a node is glued to a core only if all backends of the core can run it, so gluing never costs a label; every
placed node is in exactly one atom; atoms contract to an acyclic graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixbackend.contracts import OpGraph, OpNode, OpTag, TensorMeta, dependencies
from mixbackend.contracts.legality import RUNS_ONCE
from mixbackend.partitioner.judging import GETITEM, Candidates, source_of_getitem

REPLICATED_BYTES = 1 << 20
"""Constants up to this size are made again by each region that needs them."""


@dataclass(frozen=True, eq=False)
class Atoms:
    """How the placed nodes are grouped.

    Attributes:
        cores: name of the core of each atom, in graph order.
        members: names of the nodes each atom owns, in graph order.
        replicas: names of the replicable nodes each atom needs, owned or copied, in graph order.
        atom_of: atom by node name.
        base_of: by node name, the value its output is or aliases: a node name or the name of a graph input.
        replicable: names of all replicable nodes.
    """

    cores: tuple[str, ...]
    members: tuple[tuple[str, ...], ...]
    replicas: tuple[tuple[str, ...], ...]
    atom_of: dict[str, int]
    base_of: dict[str, str]
    replicable: frozenset[str]


def is_free(node: OpNode) -> bool:
    """Whether a node computes nothing and moves nothing: a ``getitem`` or a view of one value."""
    if node.op == GETITEM:
        return True
    return OpTag.VIEW in node.tags and not node.tags & RUNS_ONCE


def replicable_nodes(candidates: Candidates, before: dict[str, tuple[str, ...]]) -> frozenset[str]:
    """Names of the views of graph inputs and small constants that every backend of every consumer can run."""
    graph = candidates.graph
    placed = {node.name for node in graph.placed_nodes}
    sources = {node.name: _tensor_sources(graph, node) for node in graph.placed_nodes}
    overtaken = _overtaken(graph)
    wanted: set[str] = set()
    for node in reversed(graph.placed_nodes):
        consumers = graph.consumers[node.name]
        if not consumers or node.name in overtaken or any(name not in placed for name in consumers):
            continue
        supporters = candidates.supporters(node.name)
        if all(not candidates.supporters(name) & ~supporters for name in consumers):
            wanted.add(node.name)
    chosen: set[str] = set()
    for node in graph.placed_nodes:
        if node.name not in wanted or any(name not in chosen for name in before.get(node.name, ())):
            continue
        names = sources[node.name]
        rooted = len(names) == 1 and (names[0] in graph.input_by_name or names[0] in chosen)
        if (rooted and is_free(node)) or (not names and is_small_constant(candidates, node)):
            chosen.add(node.name)
    return frozenset(chosen)


def _overtaken(graph: OpGraph) -> set[str]:
    """Nodes that must run before an effect which some reader of theirs follows: a copy would come too late."""
    position = {node.name: index for index, node in enumerate(graph.nodes)}
    return {
        first
        for first, second in graph.effects
        if any(position[reader] >= position[second] for reader in graph.consumers[first])
    }


def is_small_constant(candidates: Candidates, node: OpNode) -> bool:
    """Whether a node makes a small tensor from nothing but numbers."""
    if node.tags & (RUNS_ONCE | {OpTag.MULTI_OUTPUT}) or candidates.views[node.name].op_class != "factory":
        return False
    sizes = [meta.bytes() for meta in node.outputs if isinstance(meta, TensorMeta)]
    return sum(sizes) <= REPLICATED_BYTES


def _tensor_sources(graph: OpGraph, node: OpNode) -> list[str]:
    names = dict.fromkeys(node.references())
    return [name for name in names if any(isinstance(meta, TensorMeta) for meta in _metas(graph, name))]


def _metas(graph: OpGraph, name: str) -> tuple[object, ...]:
    source = graph.input_by_name.get(name)
    return (source.meta,) if source is not None else graph.node_by_name[name].outputs


def form_atoms(candidates: Candidates) -> Atoms:
    """Group the placed nodes of a judged graph."""
    graph = candidates.graph
    before: dict[str, tuple[str, ...]] = {}
    for earlier, later in dependencies(graph):
        before[later] = (*before.get(later, ()), earlier)
    replicable = replicable_nodes(candidates, before)
    builder = _Builder(candidates, before, replicable)
    for node in graph.placed_nodes:
        builder.add(node)
    return builder.finish()


class _Builder:
    def __init__(self, candidates: Candidates, before: dict[str, tuple[str, ...]], replicable: frozenset[str]) -> None:
        self._candidates = candidates
        self._graph = candidates.graph
        self._before = before
        self._replicable = replicable
        self._cores: list[str] = []
        self._members: list[list[str]] = []
        self._replicas: list[dict[str, None]] = []
        self._atom_of: dict[str, int] = {}
        self._base_of: dict[str, str] = {item.name: item.name for item in self._graph.inputs}

    def add(self, node: OpNode) -> None:
        if node.name in self._replicable:
            sources = _tensor_sources(self._graph, node)
            self._base_of[node.name] = self._base_of[sources[0]] if sources else node.name
            return
        atom = self._home(node)
        if atom is None:
            atom = len(self._cores)
            self._cores.append(node.name)
            self._members.append([])
            self._replicas.append({})
            self._base_of[node.name] = node.name
        self._members[atom].append(node.name)
        self._atom_of[node.name] = atom
        for name in node.references():
            self._use(name, atom)

    def _home(self, node: OpNode) -> int | None:
        """The atom that a free node follows; ``None`` if it needs its own."""
        source = source_of_getitem(node)
        if source in self._atom_of and source not in self._replicable:
            atom = self._atom_of[source]
            taken_apart = self._cores[atom] == source
            self._base_of[node.name] = node.name if taken_apart else self._base_of[source]
            return atom
        sources = _tensor_sources(self._graph, node)
        if not is_free(node) or len(sources) != 1 or sources[0] not in self._atom_of:
            return None
        if sources[0] in self._replicable:
            return None
        atom = self._atom_of[sources[0]]
        missing = self._candidates.supporters(self._cores[atom]) & ~self._candidates.supporters(node.name)
        waits = any(self._atom_of.get(name) != atom for name in self._before.get(node.name, ()))
        if missing or waits:
            return None
        self._base_of[node.name] = self._base_of[sources[0]]
        return atom

    def _use(self, name: str, atom: int) -> None:
        """Give an atom the replicable nodes behind a reference; the first user owns them."""
        if name not in self._replicable or name in self._replicas[atom]:
            return
        for source in self._graph.node_by_name[name].references():
            self._use(source, atom)
        self._replicas[atom][name] = None
        if name not in self._atom_of:
            self._atom_of[name] = atom
            self._members[atom].append(name)

    def finish(self) -> Atoms:
        position = {node.name: index for index, node in enumerate(self._graph.placed_nodes)}
        return Atoms(
            cores=tuple(self._cores),
            members=tuple(tuple(sorted(names, key=position.__getitem__)) for names in self._members),
            replicas=tuple(tuple(sorted(names, key=position.__getitem__)) for names in self._replicas),
            atom_of=dict(self._atom_of),
            base_of=dict(self._base_of),
            replicable=self._replicable,
        )
