"""Short independent cycles of the link graph: what makes counting region entries exact.

Place: helper of the lower bound. Input: atoms and links. Output: cycles, as tuples of atoms in order around the cycle.
Each cycle contains a link that no earlier cycle has, so the cycles are independent. Any subset gives a valid bound; short
ones give small tables.
"""

from __future__ import annotations

from collections.abc import Sequence

REACH = 600
"""Atoms that the search for one cycle looks at before it gives up; the bound stays valid without the cycle."""


def short_cycles(size: int, links: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
    """One short cycle per link that closes one, for links in order of their later end."""
    near: list[list[int]] = [[] for _ in range(size)]
    leader = list(range(size))
    cycles: list[tuple[int, ...]] = []
    for first, second in links:
        first_leader, second_leader = _find(leader, first), _find(leader, second)
        if first_leader == second_leader:
            path = _shortest_path(near, second, first)
            if path is not None:
                cycles.append(path)
        leader[max(first_leader, second_leader)] = min(first_leader, second_leader)
        near[first].append(second)
        near[second].append(first)
    return cycles


def _find(leader: list[int], item: int) -> int:
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
