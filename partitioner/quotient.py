"""The quotient graph of a placement, kept up to date while regions merge and change backend.

Place: used by the legaliser and by refinement. Input: a problem and a legal placement. Output: placements.
Invariants: after every operation the quotient graph is acyclic (``split`` trusts its caller). Merging two regions is
legal if no path between them leads through a third; the search for one is cut off by a topological order of the
regions, which each merge repairs locally (as D. Pearce and P. Kelly do for edges, 2006), so no reachability is ever
stored.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

from mixbackend.partitioner.energy import Placement
from mixbackend.partitioner.problem import Problem


class Quotient:
    """Regions as nodes, orders between them as edges."""

    def __init__(self, problem: Problem, placement: Placement) -> None:
        self._problem = problem
        self.labels = list(placement.labels)
        self.regions = list(placement.regions)
        self.members: dict[int, list[int]] = {}
        for atom, region in enumerate(self.regions):
            self.members.setdefault(region, []).append(atom)
        self._later: dict[int, Counter[int]] = {region: Counter() for region in self.members}
        self._earlier: dict[int, Counter[int]] = {region: Counter() for region in self.members}
        for first, second in problem.edges:
            a, b = self.regions[first], self.regions[second]
            if a != b:
                self._later[a][b] += 1
                self._earlier[b][a] += 1
        self._borrowed: tuple[set[int], set[int]] = (set(), set())
        self._order: list[int | None] = [*self._sorted()]
        self._rank = {region: place for place, region in enumerate(self._order) if region is not None}

    def _sorted(self) -> list[int]:
        """Regions in execution order, near to graph order."""
        waiting = {region: len(earlier) for region, earlier in self._earlier.items()}
        ready = [(self.members[region][0], region) for region, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, region = heapq.heappop(ready)
            order.append(region)
            for other in self._later[region]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    heapq.heappush(ready, (self.members[other][0], other))
        return order

    def placement(self) -> Placement:
        """The placement as it is now."""
        return Placement(tuple(self.labels), tuple(self.regions))

    def exists(self, region: int) -> bool:
        """Whether a region number is still in use."""
        return region in self.members

    def backend(self, region: int) -> int:
        """The backend that owns a region."""
        atom = self.members[region][0]
        return self._problem.labels[atom][self.labels[atom]].backend

    def linked(self, region: int) -> list[int]:
        """Regions that share a value with this one, in order."""
        near = {self.regions[other] for atom in self.members[region] for other in self._problem.neighbours[atom]}
        near.discard(region)
        return sorted(near)

    def may_merge(self, first: int, second: int) -> bool:
        """Whether the quotient stays acyclic if two regions become one."""
        return self.may_join({first}, second)

    def may_join(self, group: set[int], other: int) -> bool:
        """Whether the quotient stays acyclic if a region joins some that could be one already."""
        return not self._detour(group, {other}) and not self._detour({other}, group)

    def _detour(self, starts: set[int], goals: set[int]) -> bool:
        """Whether a path leads from some regions to others through a third."""
        rank, later = self._rank, self._later
        last = max(rank[goal] for goal in goals)
        seen = starts | goals
        frontier: list[int] = []
        for start in starts:
            fresh = later[start] if rank[start] < last else ()
            frontier += [region for region in fresh if region not in seen and rank[region] < last]
        seen.update(frontier)
        while frontier:
            for other in later[frontier.pop()]:
                if other in goals:
                    return True
                if other not in seen and rank[other] < last:
                    seen.add(other)
                    frontier.append(other)
        return False

    def _bring_together(self, first: int, second: int) -> None:
        """Make two regions, which may merge, neighbours in the order; the second leaves a gap."""
        low, high = sorted((self._rank[first], self._rank[second]))
        start, end = self._order[low], self._order[high]
        after: set[int | None] = set()
        frontier = [start]
        while frontier:
            region = frontier.pop()
            for other in self._later[region] if region is not None else ():
                if other != end and other not in after and self._rank[other] < high:
                    after.add(other)
                    frontier.append(other)
        window = self._order[low + 1 : high]
        moved = [region for region in window if region not in after]
        moved += [min(first, second), None, *(region for region in window if region in after)]
        for place, region in enumerate(moved, start=low):
            self._order[place] = region
            if region is not None:
                self._rank[region] = place

    def merge(self, first: int, second: int) -> int:
        """Make one region of two; returns its number, the smaller of the two."""
        self._bring_together(first, second)
        kept, gone = min(first, second), max(first, second)
        del self._rank[gone]
        for atom in self.members[gone]:
            self.regions[atom] = kept
        self.members[kept] = sorted(self.members[kept] + self.members.pop(gone))
        for side, forward in enumerate((self._later, self._earlier)):
            for other, count in forward.pop(gone).items():
                del self._own(1 - side, other)[gone]
                if other != kept:
                    self._own(side, kept)[other] += count
                    self._own(1 - side, other)[kept] += count
            self._own(side, kept).pop(kept, None)
        return kept

    def copy(self) -> Quotient:
        """The same quotient, to try something on; what neither changes is shared."""
        twin = object.__new__(Quotient)
        twin._problem = self._problem
        twin.labels, twin.regions, twin.members = list(self.labels), list(self.regions), dict(self.members)
        twin._later, twin._earlier = dict(self._later), dict(self._earlier)
        twin._order, twin._rank = list(self._order), dict(self._rank)
        self._borrowed = (set(self._later), set(self._earlier))
        twin._borrowed = (set(self._later), set(self._earlier))
        return twin

    def _own(self, side: int, region: int) -> Counter[int]:
        """Later (0) or earlier (1) regions of a region, to be changed."""
        table = self._earlier if side else self._later
        if region in self._borrowed[side]:
            self._borrowed[side].discard(region)
            table[region] = table[region].copy()
        return table[region]

    def split(self, region: int, pieces: Sequence[Sequence[int]]) -> list[int]:
        """Make several regions of one.

        Args:
            pieces: all its atoms, in an order in which nothing depends on a later piece.

        Returns:
            The numbers of the pieces.
        """
        fresh = max(self.members) + 1
        numbers = [region, *range(fresh, fresh + len(pieces) - 1)]
        for side, table in enumerate((self._later, self._earlier)):
            for other in table.pop(region):
                del self._own(1 - side, other)[region]
            self._borrowed[side].discard(region)
            table.update((number, Counter()) for number in numbers)
        for number, atoms in zip(numbers, pieces, strict=True):
            self.members[number] = sorted(atoms)
            for atom in atoms:
                self.regions[atom] = number
        new = set(numbers)
        for number in numbers:
            self._connect(number, new)
        place = self._rank[region]
        self._order[place : place + 1] = numbers
        self._rank = {other: rank for rank, other in enumerate(self._order) if other is not None}
        return numbers

    def _connect(self, number: int, new: set[int]) -> None:
        """Edges of a region without any; those between new regions are made by their earlier end."""
        for atom in self.members[number]:
            for other in self._problem.successors[atom]:
                home = self.regions[other]
                if home != number:
                    self._own(0, number)[home] += 1
                    self._own(1, home)[number] += 1
            for other in self._problem.predecessors[atom]:
                home = self.regions[other]
                if home not in new:
                    self._own(0, home)[number] += 1
                    self._own(1, number)[home] += 1

    def relabel(self, atoms: Sequence[int], labels: Sequence[int]) -> None:
        """Give atoms other labels; the caller keeps regions on one backend."""
        for atom, label in zip(atoms, labels, strict=True):
            self.labels[atom] = label
