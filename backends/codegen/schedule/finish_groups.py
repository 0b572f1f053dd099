"""Finish groups: clusters of stages become groups that ``build`` can take.

Place: last step of ``grouping``.
Input: clusters. Output: ``Group``s in execution order. Shared loops get one name in all stages and are ordered so that
the innermost is the most contiguous in memory; targets that nothing else needs stay private while they fit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping

import sympy

from mixbackend.backends.codegen.ir.stages import Loop
from mixbackend.backends.codegen.schedule.alignment import Cluster
from mixbackend.backends.codegen.schedule.fusion_cost import Surroundings, is_private, slice_bytes
from mixbackend.backends.codegen.schedule.group import Group
from mixbackend.backends.codegen.schedule.rewrite import renamed


def in_order(clusters: Iterable[Cluster], before: Iterable[tuple[Cluster, Cluster]] = ()) -> Iterator[Cluster]:
    """Clusters so that each comes after those it reads from; otherwise by their first stages.

    Args:
        before: pairs of which the first must run before the second.
    """
    clusters = list(clusters)
    owner = {name: number for number, cluster in enumerate(clusters) for name in cluster.shared}
    needs = [
        {owner[name] for name in cluster.readings if name in owner} - {number}
        for number, cluster in enumerate(clusters)
    ]
    place = {id(cluster): number for number, cluster in enumerate(clusters)}
    for first, second in before:
        needs[place[id(second)]].add(place[id(first)])
    readers: dict[int, list[int]] = {number: [] for number in range(len(clusters))}
    for number, read in enumerate(needs):
        for source in read:
            readers[source].append(number)
    ready = [(cluster.members[0].number, number) for number, cluster in enumerate(clusters) if not needs[number]]
    heapq.heapify(ready)
    while ready:
        _, number = heapq.heappop(ready)
        yield clusters[number]
        for reader in readers[number]:
            needs[reader].discard(number)
            if not needs[reader]:
                heapq.heappush(ready, (clusters[reader].members[0].number, reader))


def make_group(cluster: Cluster, around: Surroundings) -> Group:
    """The group of a cluster."""
    names: dict[int, sympy.Symbol] = {}
    for fact in cluster.members:
        for symbol in fact.kept:
            if symbol in cluster.place:
                names.setdefault(cluster.place[symbol], symbol)
    stages = []
    for fact in cluster.members:
        new = {symbol: names[cluster.place[symbol]] for symbol in fact.kept if symbol in cluster.place}
        stages.append(renamed(fact.stage, new))
    outer = tuple(Loop(names[place], cluster.outer[place].size) for place in _outermost_first(cluster))
    return Group(outer, tuple(stages), _private_targets(cluster, around))


def _outermost_first(cluster: Cluster) -> list[int]:
    """Outer loops by the distance in memory of their neighbouring values, the largest first."""
    distance = [0.0] * len(cluster.outer)
    weight = [0.0] * len(cluster.outer)
    for fact in cluster.members:
        for access in fact.accesses:
            for symbol, stride in access.strides.items():
                place: int | None = cluster.place.get(symbol)
                if place is not None and stride > 0:
                    distance[place] += access.size * math.log2(1 + stride)
                    weight[place] += access.size
    mean = [total / max(share, 1.0) for total, share in zip(distance, weight, strict=True)]
    return sorted(range(len(mean)), key=lambda place: (-mean[place], place))


def _private_targets(cluster: Cluster, around: Surroundings) -> frozenset[str]:
    """Targets without memory of their own, small ones first: together they fit into fast memory."""
    slices: Mapping[str, float] = {
        name: slice_bytes(cluster, name, around) for name in cluster.shared if is_private(cluster, name, around)
    }
    room = float(around.traits.scratch_bytes)
    chosen = set()
    for name in sorted(slices, key=lambda name: (slices[name], name)):
        room -= slices[name]
        if room >= 0:
            chosen.add(name)
    return frozenset(chosen)
