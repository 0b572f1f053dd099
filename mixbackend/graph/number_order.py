"""Number order: in which regions of a plan a number may be computed.

Place: used by ``graph.regions``, which computes a number inside a region where it can.
Input: a graph's effect edges and its plan. Output: yes or no for a number and a region.
"""

from __future__ import annotations

from collections.abc import Mapping

from mixbackend.contracts import OpGraph


class NumberOrder:
    """In which regions of a plan a number may be computed without passing a write into what it is read from.

    Args:
        graph: the captured graph.
        rank: place in the plan of the region that owns a node, by name.
    """

    def __init__(self, graph: OpGraph, rank: Mapping[str, int]) -> None:
        self._earliest: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        for first, second in graph.effects:
            if first in rank:
                self._earliest[second] = max(self._earliest.get(second, -1), rank[first])
            if second in rank:
                self._latest[first] = min(self._latest.get(first, rank[second]), rank[second])

    def allows(self, number: str, region: int) -> bool:
        """Whether the region at this place may compute it."""
        return self._earliest.get(number, region) <= region <= self._latest.get(number, region)
