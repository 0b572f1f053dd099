"""Alignment: which loops of two clusters of stages are the same loop.

Place: inside ``grouping``.
A cluster has outer loops; each member has a loop of its own for each of them. An outer loop of one cluster and one of
another can be one loop if every tensor that passes between them is read at the very point where it was made: where
``mean[row]`` is defined by one and read by the other at ``[i]``, the loops ``row`` and ``i`` are one.
Clusters between which nothing passes are aligned by the tensors both read.
Invariants: dropping an outer loop from a cluster keeps it valid, so a merge keeps the loops that align.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import sympy

from mixbackend.backends.codegen.schedule.stage_facts import Access, StageFacts

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class OuterLoop:
    """A loop that all members of a cluster share; ``extent`` estimates its size."""

    size: sympy.Expr
    extent: int


@dataclass(frozen=True, eq=False)
class Cluster:
    """Stages that would be one kernel.

    Attributes:
        members: in execution order.
        outer: loops they share, in no particular order.
        place: for each member's loops, the outer loop that it is.
    """

    members: tuple[StageFacts, ...]
    outer: tuple[OuterLoop, ...]
    place: Mapping[sympy.Symbol, int]

    @cached_property
    def stages(self) -> int:
        """Numbers of the members as a bit set."""
        return sum(1 << fact.number for fact in self.members)

    @cached_property
    def shared(self) -> dict[str, tuple[int | None, ...]]:
        """For every target, the outer loop that each dimension is."""
        found = {}
        for fact in self.members:
            dimensions = {dimension: self.place.get(symbol) for symbol, dimension in fact.kept.items()}
            for name, index in zip(fact.targets, fact.accesses[-len(fact.targets) :], strict=True):
                found[name] = tuple(dimensions.get(dimension) for dimension in range(len(index.loops)))
        return found

    @cached_property
    def readings(self) -> dict[str, list[tuple[int | None, ...]]]:
        """For every tensor that is read, the outer loops of its dimensions, once per way to read it."""
        found: dict[str, dict[tuple[int | None, ...], None]] = defaultdict(dict)
        for fact in self.members:
            for name, indices in fact.reads.items():
                for index in indices:
                    found[name][tuple(None if loop is None else self.place.get(loop) for loop in index)] = None
        return {name: list(ways) for name, ways in found.items()}

    @cached_property
    def steps(self) -> dict[str, list[tuple[Access, dict[int, int]]]]:
        """For every tensor, each access to it with its stride along each outer loop that it moves along."""
        found: dict[str, list[tuple[Access, dict[int, int]]]] = defaultdict(list)
        for fact in self.members:
            for access in fact.accesses:
                moves = {self.place[loop]: step for loop, step in access.strides.items() if loop in self.place and step}
                found[access.tensor].append((access, moves))
        return found

    def inner_loops(self, fact: StageFacts) -> tuple[sympy.Symbol, ...]:
        """Loops of a member that are not shared and have more than one value, the best vector first."""
        return self._inner_loops[fact.number]

    @cached_property
    def _inner_loops(self) -> dict[int, tuple[sympy.Symbol, ...]]:
        return {
            fact.number: tuple(loop for loop in fact.last if loop not in self.place and fact.extents[loop] > 1)
            for fact in self.members
        }


def single(fact: StageFacts) -> Cluster:
    """A cluster of one stage."""
    outer = tuple(OuterLoop(fact.sizes[symbol], fact.extents[symbol]) for symbol in fact.kept)
    return Cluster((fact,), outer, {symbol: place for place, symbol in enumerate(fact.kept)})


def passes(first: Cluster, second: Cluster) -> bool:
    """Whether the second reads a target of the first."""
    return not first.shared.keys().isdisjoint(second.readings)


def align(first: Cluster, second: Cluster) -> list[Pair]:
    """Pairs of outer loops that are one loop."""
    if passes(first, second):
        return _align_along_tensors(first, second)
    if passes(second, first):
        return [(one, other) for other, one in _align_along_tensors(second, first)]
    return _align_by_inputs(first, second)


def have_common_inputs(first: Cluster, second: Cluster) -> bool:
    """Whether both read one tensor."""
    return not first.readings.keys().isdisjoint(second.readings)


def merged(first: Cluster, second: Cluster, pairs: list[Pair]) -> Cluster:
    """One cluster of both that shares the paired loops."""
    outer = tuple(first.outer[one] for one, _ in pairs)
    place: dict[sympy.Symbol, int] = {}
    for cluster, side in ((first, 0), (second, 1)):
        moved = {pair[side]: position for position, pair in enumerate(pairs)}
        place.update((symbol, moved[old]) for symbol, old in cluster.place.items() if old in moved)
    members = tuple(sorted((*first.members, *second.members), key=lambda fact: fact.number))
    return Cluster(members, outer, place)


def _align_along_tensors(maker: Cluster, reader: Cluster) -> list[Pair]:
    """Loops of the maker's that are, in every read of what it makes, one and the same loop of the reader's."""
    read_at: dict[int, set[int | None]] = defaultdict(set)
    for name, dimensions in maker.shared.items():
        for way in reader.readings.get(name, ()):
            for one, other in zip(dimensions, way, strict=True):
                if one is not None:
                    read_at[one].add(other)
    pairs: list[Pair] = []
    for one, others in sorted(read_at.items()):
        other = next(iter(others))
        if len(others) > 1 or other is None or any(other == taken for _, taken in pairs):
            continue
        if maker.outer[one].size == reader.outer[other].size:
            pairs.append((one, other))
    return pairs


def _align_by_inputs(first: Cluster, second: Cluster) -> list[Pair]:
    """Loops that step through common tensors in the same way, large tensors first; equal loops where none is common."""
    votes: dict[Pair, int] = defaultdict(int)
    for name in sorted(first.readings.keys() & second.readings.keys()):
        for access, moves in first.steps[name]:
            for other_access, other_moves in second.steps[name]:
                for one, step in moves.items():
                    for other in (place for place, also in other_moves.items() if also == step):
                        votes[one, other] += min(access.size, other_access.size)
    if not votes:
        same = [loop.size for loop in first.outer] == [loop.size for loop in second.outer]
        return [(place, place) for place in range(len(first.outer))] if same else []
    pairs: list[Pair] = []
    for one, other in sorted(votes, key=lambda pair: (-votes[pair], pair)):
        is_free = all(one != taken and other != also for taken, also in pairs)
        if is_free and first.outer[one].size == second.outer[other].size:
            pairs.append((one, other))
    return sorted(pairs)
