"""What each region of a plan took, inside that plan.

Place: made in ``worker``, read by ``refine`` in the process that tunes; JSON in between.
Invariants: nodes are named as in ``partitioner.plan_canonical``, so that they mean the same in both processes; reading
checks every field.
Units: seconds. A region's time is what its call took with its neighbours before and after it: caches and pools of
threads are as in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.reporting.records import GraphRecord


@dataclass(frozen=True, slots=True)
class RegionTiming:
    """One region of a candidate.

    Attributes:
        backend: that ran it.
        layout: of the graph's images.
        nodes: canonical names.
        estimated_s: as the candidate was planned.
        measured_s: median of a few calls.
    """

    backend: str
    layout: str
    nodes: tuple[str, ...]
    estimated_s: float
    measured_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "backend": self.backend,
            "layout": self.layout,
            "nodes": list(self.nodes),
            "estimated_s": self.estimated_s,
            "measured_s": self.measured_s,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RegionTiming:
        """A timing from plain data.

        Raises:
            KeyError, TypeError, ValueError: the data is not that of a timing.
        """
        nodes = tuple(map(str, data["nodes"]))
        seconds = float(data["estimated_s"]), float(data["measured_s"])
        return cls(str(data["backend"]), str(data["layout"]), nodes, *seconds)


def timings_of(record: GraphRecord) -> tuple[RegionTiming, ...]:
    """The regions of a graph that were timed."""
    return tuple(
        RegionTiming(region.backend, record.layout.chosen, region.nodes, region.estimated_s, seconds)
        for region, named in zip(canonical_plan(record.plan, record.graph).regions, record.plan.regions, strict=True)
        if (seconds := record.record(named).measured_s) is not None
    )
