"""From labels to legal regions.

Place: after the labelling. Input: a problem and one label per atom. Output: a region number per atom.
Regions are first the connected components of equal backend. Where such components depend on each other in a circle,
those (and only those) are cut at levels: an atom's level rises whenever a path leaves its component and comes back.
Levels counted from the front and from the back give two splits; each is then put together again greedily, and the
cheaper one under the true energy is taken.
Invariants: the result is connected, on one backend, keeps matches whole, and its quotient graph has no cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mixbackend.partitioner.cycles import leader_of
from mixbackend.partitioner.energy import Placement, true_energy
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.quotient import Quotient


class EntangledClaimsError(Exception):
    """Chosen matches depend on each other in a circle, so not all of them can be kept.

    Attributes:
        claims: their numbers.
    """

    def __init__(self, claims: frozenset[int]) -> None:
        super().__init__(f"claims {sorted(claims)} depend on each other")
        self.claims = claims


def form_regions(problem: Problem, labels: Sequence[int]) -> Placement:
    """Legal regions for a labelling.

    Raises:
        EntangledClaimsError: the chosen matches cannot all be kept.
    """
    components = _components(problem, labels)
    tangled = _tangled(problem, components)
    if not tangled:
        return Placement(tuple(labels), tuple(components))
    groups = _groups(problem, labels)
    candidates = []
    for backwards in (False, True):
        levels = _levels(problem, labels, components, groups, tangled, backwards)
        pieces = _connected_pieces(problem, labels, components, levels)
        placement = Placement(tuple(labels), tuple(pieces))
        candidates.append(_put_together(problem, placement, set(_regions_of(pieces, components, tangled))))
    return min(candidates, key=lambda placement: true_energy(problem, placement))


def _components(problem: Problem, labels: Sequence[int]) -> list[int]:
    """Connected components of equal backend, each numbered by its first atom."""
    backends = [problem.labels[atom][label].backend for atom, label in enumerate(labels)]
    same = ((a, b) for a, b in problem.links if backends[a] == backends[b])
    return _joined(problem.size, same)


def _groups(problem: Problem, labels: Sequence[int]) -> list[int]:
    """Atoms that a chosen match holds together, each group numbered by its first atom."""
    chosen = [problem.labels[atom][label].claim for atom, label in enumerate(labels)]
    if not any(claim >= 0 for claim in chosen):
        return list(range(problem.size))
    return _joined(problem.size, ((a, b) for a, b in problem.links if chosen[a] >= 0 and chosen[a] == chosen[b]))


def _joined(size: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    leader = list(range(size))
    for first, second in pairs:
        a, b = leader_of(leader, first), leader_of(leader, second)
        leader[max(a, b)] = min(a, b)
    return [leader_of(leader, item) for item in range(size)]


def _tangled(problem: Problem, components: Sequence[int]) -> dict[int, int]:
    """For every component that depends on itself through others: the circle it belongs to."""
    circles = circles_of((components[a], components[b]) for a, b in problem.edges if components[a] != components[b])
    return {component: number for number, circle in enumerate(circles) for component in circle}


def _levels(
    problem: Problem,
    labels: Sequence[int],
    components: Sequence[int],
    groups: Sequence[int],
    tangled: dict[int, int],
    backwards: bool,
) -> list[int]:
    """Level of every atom: how often a path to it (or from it) changes component inside its circle."""
    steps: dict[tuple[int, int], int] = {}
    for first, second in problem.edges:
        circle = tangled.get(components[first])
        if circle is None or tangled.get(components[second]) != circle or groups[first] == groups[second]:
            continue
        ends = (groups[first], groups[second]) if not backwards else (groups[second], groups[first])
        steps[ends] = max(int(components[first] != components[second]), steps.get(ends, 0))
    inside = [atom for atom in range(problem.size) if components[atom] in tangled]
    level_by_group = _longest_paths({groups[atom] for atom in inside}, steps)
    if level_by_group is None:
        stuck = {problem.labels[atom][labels[atom]].claim for circle in circles_of(steps) for atom in circle}
        raise EntangledClaimsError(frozenset(stuck - {-1}))
    levels = [0] * problem.size
    for atom in inside:
        levels[atom] = level_by_group[groups[atom]]
    return levels


def circles_of(edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The places that depend on themselves through others, circle by circle: strongly connected, more than one."""
    after: dict[int, dict[int, None]] = {}
    for first, second in edges:
        after.setdefault(first, {})[second] = None
        after.setdefault(second, {})
    begun: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_places: dict[int, None] = {}
    circles: list[list[int]] = []
    for root in after:
        path = [] if root in begun else [(root, iter(after[root]))]
        while path:
            place, rest = path[-1]
            if place not in begun:
                begun[place] = lowest[place] = len(begun)
                open_places[place] = None
            new = next((item for item in rest if item not in begun), None)
            if new is not None:
                path.append((new, iter(after[new])))
                continue
            path.pop()
            lowest[place] = min(lowest[item] for item in (place, *after[place]) if item in open_places)
            if lowest[place] == begun[place]:
                circle: list[int] = []
                while not circle or circle[-1] != place:
                    circle.append(open_places.popitem()[0])
                circles += [circle] if len(circle) > 1 else []
    return circles


def _longest_paths(places: Iterable[int], steps: Mapping[tuple[int, int], int]) -> dict[int, int] | None:
    """The most steps on any path to each place; ``None`` if there are circles."""
    after: dict[int, list[tuple[int, int]]] = {place: [] for place in places}
    waiting = dict.fromkeys(after, 0)
    for (first, second), step in steps.items():
        after[first].append((second, step))
        waiting[second] += 1
    longest = dict.fromkeys(after, 0)
    ready = [place for place, count in waiting.items() if count == 0]
    for place in ready:
        for other, step in after[place]:
            longest[other] = max(longest[other], longest[place] + step)
            waiting[other] -= 1
            if waiting[other] == 0:
                ready.append(other)
    return longest if len(ready) == len(longest) else None


def _connected_pieces(
    problem: Problem, labels: Sequence[int], components: Sequence[int], levels: Sequence[int]
) -> list[int]:
    # Order alone joins as well: pieces of one component and level that order ties together could depend on each other.
    pairs = (*problem.links, *problem.edges)
    same = ((a, b) for a, b in pairs if components[a] == components[b] and levels[a] == levels[b])
    return _joined(problem.size, same)


def _regions_of(pieces: Sequence[int], components: Sequence[int], tangled: dict[int, int]) -> Iterable[int]:
    return (piece for piece, component in zip(pieces, components, strict=True) if component in tangled)


def _put_together(problem: Problem, placement: Placement, pieces: set[int]) -> Placement:
    """Merge pieces of one backend wherever that is legal: it saves an entry and can only save traffic."""
    quotient = Quotient(problem, placement)
    for piece in sorted(pieces):
        merged = True
        while merged and quotient.exists(piece):
            merged = False
            for other in quotient.linked(piece):
                if quotient.backend(other) == quotient.backend(piece) and quotient.may_merge(piece, other):
                    piece = quotient.merge(piece, other)
                    merged = True
                    break
    return quotient.placement()
