"""Dependencies between groups: which merges keep their graph free of cycles.

Place: inside ``grouping``.
Sets of stages are bit sets in plain integers. Every group keeps all stages before and after it, through whatever
groups; a merge updates only groups with sets that change, so that a whole run is near linear on graphs like networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class Dependencies:
    """A partition of stages into groups with an acyclic quotient graph.

    Args:
        sources: for each stage, the earlier stages that it reads.
    """

    def __init__(self, sources: Sequence[Sequence[int]]) -> None:
        count = len(sources)
        self._group = list(range(count))
        self._members = [1 << number for number in range(count)]
        self._before = [0] * count
        self._after = [0] * count
        for number, read in enumerate(sources):
            for source in read:
                self._before[number] |= self._before[source] | (1 << source)
        readers: list[list[int]] = [[] for _ in range(count)]
        for number, read in enumerate(sources):
            for source in read:
                readers[source].append(number)
        for number in reversed(range(count)):
            for reader in readers[number]:
                self._after[number] |= self._after[reader] | (1 << reader)

    def group(self, stage: int) -> int:
        """The group of a stage, named by one of its stages."""
        while self._group[stage] != stage:
            self._group[stage] = self._group[self._group[stage]]
            stage = self._group[stage]
        return stage

    def makes_cycle(self, first: int, second: int) -> bool:
        """Whether a third group would have to run both before and after the two merged."""
        outside = ~(self._members[first] | self._members[second])
        through = (self._after[first] & self._before[second]) | (self._after[second] & self._before[first])
        return bool(through & outside)

    def merge(self, first: int, second: int) -> int:
        """Make two groups one; returns its name."""
        keep, gone = min(first, second), max(first, second)
        members = self._members[keep] | self._members[gone]
        before = (self._before[keep] | self._before[gone]) & ~members
        after = (self._after[keep] | self._after[gone]) & ~members
        gain_before = self._only_one(self._after, keep, gone) & after
        gain_after = self._only_one(self._before, keep, gone) & before
        for group in self._groups(gain_before):
            self._before[group] |= before | members
        for group in self._groups(gain_after):
            self._after[group] |= after | members
        self._group[gone] = keep
        self._members[keep], self._before[keep], self._after[keep] = members, before, after
        return keep

    def _only_one(self, sets: Sequence[int], first: int, second: int) -> int:
        return sets[first] ^ sets[second]

    def _groups(self, stages: int) -> Iterator[int]:
        """The groups that a set of stages belongs to, each once."""
        while stages:
            group = self.group((stages & -stages).bit_length() - 1)
            yield group
            stages &= ~self._members[group]
