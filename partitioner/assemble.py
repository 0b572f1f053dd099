"""From a placement to a ``Plan``: names instead of numbers, regions in a legal order.

Place: last step of the partitioner. Input: a problem, a placement, refusals of regions. Output: ``Plan``.
Invariants: regions are ordered by dependency, then by their first node; ids are ``r0``, ``r1``... in that order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from mixbackend.contracts import Plan, PlannedRegion, Refusal, Unsupported
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.energy import Placement, region_energies
from mixbackend.partitioner.problem import Problem


def assemble(
    problem: Problem,
    placement: Placement,
    refusals: Sequence[tuple[int, int, Unsupported]],
    rules: RegionRules,
) -> Plan:
    """The plan of a placement, without bound and comparisons."""
    graph = problem.graph
    seconds = region_energies(problem, placement, rules.price)
    members: dict[int, list[int]] = {}
    for atom, region in enumerate(placement.regions):
        members.setdefault(region, []).append(atom)
    position = {node.name: index for index, node in enumerate(graph.placed_nodes)}
    regions = tuple(
        _region(problem, placement, members[region], f"r{index}", seconds[region], position)
        for index, region in enumerate(execution_order(problem, placement))
    )
    return Plan(
        graph_id=graph.id,
        phase=graph.phase,
        dynamic=graph.dynamic,
        regions=regions,
        refusals=_refusals(problem, placement, refusals, position),
        estimated_s=sum(region.estimated_s for region in regions),
    )


def execution_order(problem: Problem, placement: Placement) -> list[int]:
    """Region numbers in a legal order; among those that could run, the one with the earliest first atom."""
    first: dict[int, int] = {}
    for atom, region in enumerate(placement.regions):
        first.setdefault(region, atom)
    later: dict[int, set[int]] = {region: set() for region in first}
    waiting = dict.fromkeys(first, 0)
    for earlier, second in problem.edges:
        a, b = placement.regions[earlier], placement.regions[second]
        if a != b and b not in later[a]:
            later[a].add(b)
            waiting[b] += 1
    ready = [(first[region], region) for region, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, region = heapq.heappop(ready)
        order.append(region)
        for other in later[region]:
            waiting[other] -= 1
            if waiting[other] == 0:
                heapq.heappush(ready, (first[other], other))
    return order


def _region(
    problem: Problem,
    placement: Placement,
    atoms: Sequence[int],
    identity: str,
    seconds: float,
    position: dict[str, int],
) -> PlannedRegion:
    owned = sorted((name for atom in atoms for name in problem.atoms.members[atom]), key=position.__getitem__)
    needed = {name for atom in atoms for name in problem.atoms.replicas[atom]}
    copies = sorted(needed.difference(owned), key=position.__getitem__)
    labels = [problem.labels[atom][placement.labels[atom]] for atom in atoms]
    claims = dict.fromkeys(label.claim for label in labels if label.claim >= 0)
    matches = tuple((problem.claims[claim].match.pattern, problem.claims[claim].match.nodes) for claim in claims)
    return PlannedRegion(
        id=identity,
        backend=problem.backends[labels[0].backend],
        nodes=tuple(owned),
        copies=tuple(copies),
        matches=matches,
        estimated_s=seconds,
    )


def _refusals(
    problem: Problem,
    placement: Placement,
    refusals: Sequence[tuple[int, int, Unsupported]],
    position: dict[str, int],
) -> tuple[Refusal, ...]:
    """Refusals of ops, and of the regions that were handed on and did not come back."""
    slot_by_name = {name: slot for slot, name in enumerate(problem.backends)}
    owner = {
        name: problem.backends[problem.labels[atom][placement.labels[atom]].backend]
        for atom, names in enumerate(problem.atoms.members)
        for name in names
    }
    judged = (item for item in problem.candidates.refusals() if owner[item.node] != item.backend)
    entries = {(item.node, item.backend): item for item in judged}
    for atom, slot, why in refusals:
        if problem.labels[atom][placement.labels[atom]].backend == slot:
            continue
        name = problem.backends[slot]
        for node in problem.atoms.members[atom]:
            entries.setdefault((node, name), Refusal(node, name, why.code, why.detail))
    return tuple(sorted(entries.values(), key=lambda item: (position[item.node], slot_by_name[item.backend])))
