"""Brute force over all legal plans of a small problem: the oracle of the search and of the bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import networkx as nx

from mixbackend.partitioner.energy import Placement, true_energy
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.search import whole


def least_energy(problem: Problem) -> float:
    """Least true energy over all labellings and all their connected, convex partitions.

    Nothing is left out but what cannot matter: costs are not negative, so a labelling whose ops alone cost more than
    the best plan so far is passed over, and so is one whose connected components, legal or not, do.
    """
    found = [float("inf")]
    for labels in _labellings(problem, found):
        merged = tuple(_components(problem, labels)[0])
        if true_energy(problem, Placement(labels, merged)) >= found[-1]:
            continue
        for regions in cheapest_partitions(problem, labels):
            found.append(min(found[-1], true_energy(problem, Placement(labels, regions))))
    return found[-1]


def _labellings(problem: Problem, found: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """All labellings that keep matches whole, but those whose ops cost at least the best energy known by then."""
    rest = [0.0] * (problem.size + 1)
    for atom in reversed(range(problem.size)):
        rest[atom] = rest[atom + 1] + min(problem.costs[atom])

    def extend(labels: tuple[int, ...], seconds: float) -> Iterator[tuple[int, ...]]:
        if seconds + rest[len(labels)] >= found[-1]:
            return
        if len(labels) == problem.size:
            if whole(problem, labels):
                yield labels
            return
        for label in sorted(range(len(problem.labels[len(labels)])), key=problem.costs[len(labels)].__getitem__):
            yield from extend((*labels, label), seconds + problem.costs[len(labels)][label])

    return extend((), 0.0)


def _components(problem: Problem, labels: Sequence[int]) -> tuple[list[int], nx.Graph]:
    backends = [problem.labels[atom][label].backend for atom, label in enumerate(labels)]
    near = nx.Graph()
    near.add_nodes_from(range(problem.size))
    near.add_edges_from((a, b) for a, b in problem.links if backends[a] == backends[b])
    components = [0] * problem.size
    for number, component in enumerate(nx.connected_components(near)):
        for atom in component:
            components[atom] = number
    return components, near


def cheapest_partitions(problem: Problem, labels: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The partitions that can be cheapest: the coarsest legal ones.

    Merging two regions of one backend never costs more, so if the connected components are acyclic they are the only
    candidate; otherwise every legal partition that keeps matches whole is listed.
    """
    components, near = _components(problem, labels)
    if acyclic(problem, components):
        yield tuple(components)
        return
    for regions in _refinements(problem, components, near):
        if acyclic(problem, regions) and _keeps_matches(problem, labels, regions):
            yield tuple(regions)


def acyclic(problem: Problem, regions: Sequence[int]) -> bool:
    """Whether the quotient graph has no cycle."""
    quotient = nx.DiGraph((regions[a], regions[b]) for a, b in problem.edges if regions[a] != regions[b])
    return nx.is_directed_acyclic_graph(quotient)


def _keeps_matches(problem: Problem, labels: Sequence[int], regions: Sequence[int]) -> bool:
    home: dict[int, int] = {}
    for atom, label in enumerate(labels):
        claim = problem.labels[atom][label].claim
        if claim >= 0 and home.setdefault(claim, regions[atom]) != regions[atom]:
            return False
    return True


def _refinements(problem: Problem, components: Sequence[int], near: nx.Graph) -> Iterator[list[int]]:
    """All connected partitions of the components, as region numbers."""
    options = []
    for number in sorted(set(components)):
        atoms = [atom for atom in range(problem.size) if components[atom] == number]
        connected = [
            blocks for blocks in partitions(atoms) if all(nx.is_connected(near.subgraph(block)) for block in blocks)
        ]
        options.append(connected)
    for choice in product(*options):
        regions = [0] * problem.size
        for number, block in enumerate(block for blocks in choice for block in blocks):
            for atom in block:
                regions[atom] = number
        yield regions


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """All ways to divide items into groups."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for blocks in partitions(rest):
        yield [[first], *blocks]
        for index in range(len(blocks)):
            yield [*blocks[:index], [first, *blocks[index]], *blocks[index + 1 :]]
