"""Detours and cycles of the link graph: what makes counting region entries exact.

Place: helper of the lower bound. Input: atoms and links (pairs of atoms that share a value, producer first).
Output: ``Shape``.
A link is bypassed if a longer path of links leads from its first atom to its second: both can be in one region only if
the whole path is, since regions are convex. The other links already connect every region, and only they count. Their
cycles are independent: each contains a link that no earlier cycle has. Cycles that run as parallel paths from one atom
to another, and share no link with other cycles, form a bundle. Any subset of detours, cycles and bundles gives a valid
bound; short ones give small tables.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

REACH = 600
"""Atoms that the search for one cycle looks at before it gives up; the bound stays valid without the cycle."""


@dataclass(frozen=True)
class Shape:
    """How links run around each other.

    Attributes:
        detours: (first, second) of a bypassed link, to the path between them, both included.
        cycles: atoms around each short cycle of the links that are not bypassed, bundles left out.
        bundles: parallel paths, each from the same first to the same last atom, both included.
    """

    detours: dict[tuple[int, int], tuple[int, ...]]
    cycles: tuple[tuple[int, ...], ...]
    bundles: tuple[tuple[tuple[int, ...], ...], ...]


def shape_of(size: int, links: Sequence[tuple[int, int]]) -> Shape:
    """Detours and cycles of a link graph."""
    before: list[list[int]] = [[] for _ in range(size)]
    for first, second in links:
        before[second].append(first)
    detours: dict[tuple[int, int], tuple[int, ...]] = {}
    for first, second in links:
        if len(before[second]) > 1:
            path = _detour(before, first, second)
            if path is not None:
                detours[first, second] = path
    cycles = short_cycles(size, [link for link in links if link not in detours])
    bundles, rest = _bundles(cycles)
    return Shape(detours, tuple(rest), tuple(bundles))


def _bundles(cycles: Sequence[tuple[int, ...]]) -> tuple[list[tuple[tuple[int, ...], ...]], list[tuple[int, ...]]]:
    """Sort cycles into bundles of parallel paths and others."""
    groups: dict[tuple[int, int, int], list[tuple[int, ...]]] = {}
    for number, cycle in enumerate(cycles):
        first, last = min(cycle), max(cycle)
        parallel = all(list(path) == sorted(path) for path in _sides(cycle))
        groups.setdefault((first, last, -1 if parallel else number), []).append(cycle)
    links = {key: {link for cycle in group for link in _links_around(cycle)} for key, group in groups.items()}
    users = Counter(link for group in links.values() for link in group)
    bundles: list[tuple[tuple[int, ...], ...]] = []
    rest: list[tuple[int, ...]] = []
    for key, group in groups.items():
        paths = list(dict.fromkeys(path for cycle in group for path in _sides(cycle)))
        inside = [atom for path in paths for atom in path[1:-1]]
        apart = len(paths) == len(group) + 1 and len(set(inside)) == len(inside)
        if key[2] == -1 and apart and all(users[link] == 1 for link in links[key]):
            bundles.append(tuple(paths))
        else:
            rest += group
    return bundles, rest


def _sides(cycle: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two ways around a cycle from its first atom in graph order to its last."""
    start = cycle.index(min(cycle))
    turned = cycle[start:] + cycle[:start]
    end = turned.index(max(cycle))
    return turned[: end + 1], (turned[0], *reversed(turned[end:]))


def _links_around(cycle: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(min(pair), max(pair)) for pair in zip(cycle, (*cycle[1:], cycle[0]), strict=True)]


def _detour(before: Sequence[Sequence[int]], first: int, second: int) -> tuple[int, ...] | None:
    """A shortest path of at least two links, found backwards."""
    following: dict[int, int] = {}
    frontier: deque[int] = deque()
    for atom in before[second]:
        if atom > first:
            following[atom] = second
            frontier.append(atom)
    while frontier and len(following) < REACH:
        atom = frontier.popleft()
        for other in before[atom]:
            if other == first:
                path = [first, atom]
                while path[-1] != second:
                    path.append(following[path[-1]])
                return tuple(path)
            if other > first and other not in following:
                following[other] = atom
                frontier.append(other)
    return None


def short_cycles(size: int, links: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
    """One short cycle per link that closes one, for links in order of their later end."""
    near: list[list[int]] = [[] for _ in range(size)]
    leader = list(range(size))
    cycles: list[tuple[int, ...]] = []
    for first, second in links:
        first_leader, second_leader = leader_of(leader, first), leader_of(leader, second)
        if first_leader == second_leader:
            path = _shortest_path(near, second, first)
            if path is not None:
                cycles.append(path)
        leader[max(first_leader, second_leader)] = min(first_leader, second_leader)
        near[first].append(second)
        near[second].append(first)
    return cycles


def leader_of(leader: list[int], item: int) -> int:
    """The first of the set that an item is in; shortens the way to it."""
    while leader[item] != item:
        leader[item] = leader[leader[item]]
        item = leader[item]
    return item


def _shortest_path(near: Sequence[Sequence[int]], start: int, goal: int) -> tuple[int, ...] | None:
    """Breadth first from both ends, the smaller frontier first."""
    parents: tuple[dict[int, int], dict[int, int]] = ({start: start}, {goal: goal})
    frontiers = [[start], [goal]]
    while frontiers[0] and frontiers[1] and len(parents[0]) + len(parents[1]) < REACH:
        side = 0 if sum(len(near[atom]) for atom in frontiers[0]) <= sum(len(near[a]) for a in frontiers[1]) else 1
        reached: list[int] = []
        for atom in frontiers[side]:
            for other in near[atom]:
                if other in parents[side]:
                    continue
                parents[side][other] = atom
                if other in parents[1 - side]:
                    return _joined(parents, other)
                reached.append(other)
        frontiers[side] = reached
    return None


def _joined(parents: tuple[dict[int, int], dict[int, int]], middle: int) -> tuple[int, ...]:
    path = _walk(parents[0], middle)[::-1]
    return tuple(path + _walk(parents[1], middle)[1:])


def _walk(parent: dict[int, int], atom: int) -> list[int]:
    path = [atom]
    while parent[atom] != atom:
        atom = parent[atom]
        path.append(atom)
    return path
