"""What is odd about a placed graph, as sentences that say what it costs.

Place: beneath ``data``. Input: the record of a graph. Output: hints, the costliest first.
The idea of rules that look for hazards in a plan is that of NVIDIA's TREx, which looks at TensorRT's engines.
Non-goals: what the partitioner should have done: each hint is a fact and its price.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import mixbackend.reporting.summary as summary
from mixbackend.contracts.plan import PlannedRegion
from mixbackend.reporting.records import GraphRecord

SMALL = 3
"""A region of at most so many nodes is small."""
SLOWER = 2.0
"""A region that takes so many times its estimate is told."""
LEAST_CALLS = 3
"""Of a graph: what fewer took is no typical time."""
LEAST_SHARE = 0.01
"""Of the graph's time: less is not told."""


@dataclass(frozen=True, slots=True)
class Hint:
    """One of them.

    Attributes:
        graph: id.
        regions: ids of those that it is about.
        seconds: what it costs a call.
        text: for people.
    """

    graph: str
    regions: tuple[str, ...]
    seconds: float
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def hints(record: GraphRecord) -> tuple[Hint, ...]:
    """All of one graph, the costliest first."""
    found = [*_islands(record), *_slow(record), *_advised(record)]
    least = LEAST_SHARE * record.plan.estimated_s
    return tuple(sorted((hint for hint in found if hint.seconds >= least), key=lambda hint: -hint.seconds))


def _seconds(record: GraphRecord, region: PlannedRegion) -> float:
    measured = record.record(region).measured_s
    return region.estimated_s if measured is None else measured


def _islands(record: GraphRecord) -> Iterator[Hint]:
    """Small regions with neighbours that are all on one other backend."""
    around = _neighbours(record)
    by_id = {region.id: region for region in record.plan.regions}
    refusals = {(item.node, item.backend): item for item in record.plan.refusals}
    for region in record.plan.regions:
        others = [by_id[name] for name in around[region.id]]
        owners = {other.backend for other in others}
        if len(region.nodes) > SMALL or len(others) < 2 or len(owners) != 1 or region.backend in owners:
            continue
        (owner,) = owners
        refused = [refusals[node, owner] for node in region.nodes if (node, owner) in refusals]
        why = f"{owner} refuses {refused[0].node}: {refused[0].detail}" if refused else f"{owner} takes all of it"
        seconds = _seconds(record, region)
        count = f"{len(region.nodes)} node{'s' if len(region.nodes) > 1 else ''}"
        ops = summary.short_ops(record.ops(region))
        yield Hint(
            record.graph.id,
            (region.id,),
            seconds,
            f"{region.id}, {count} ({ops}) on {region.backend} between regions of {owner}, costs "
            f"{summary.milliseconds(seconds)} ms; {why}",
        )


def _neighbours(record: GraphRecord) -> dict[str, list[str]]:
    """Ids of the regions that a region reads from or writes for."""
    home = {name: region.id for region in record.plan.regions for name in region.nodes}
    around: dict[str, dict[str, None]] = {region.id: {} for region in record.plan.regions}
    for node in record.graph.placed_nodes:
        for name in node.references():
            source, reader = home.get(name), home[node.name]
            if source is not None and source != reader:
                around[source][reader] = around[reader][source] = None
    return {region: list(others) for region, others in around.items()}


def _slow(record: GraphRecord) -> Iterator[Hint]:
    """Backends with regions that take much longer than was estimated, once there were more calls than the first."""
    if record.selection is not None and record.selection["calls"] < LEAST_CALLS:
        return
    slow: dict[str, list[tuple[str, float, float]]] = {}
    for region in record.plan.regions:
        seconds = record.record(region).measured_s
        if seconds is not None and seconds > SLOWER * region.estimated_s > 0.0:
            slow.setdefault(region.backend, []).append((region.id, seconds, region.estimated_s))
    for backend, rows in slow.items():
        names, measured, estimated = zip(*rows, strict=True)
        took, wanted = summary.milliseconds(sum(measured)), summary.milliseconds(sum(estimated))
        yield Hint(
            record.graph.id,
            names,
            sum(measured) - sum(estimated),
            f"{len(names)} region{'s' if len(names) > 1 else ''} on {backend} took {took} ms where {wanted} were "
            "estimated: the machine was busy, or its rates are not known (`mixbackend calibrate` measures them)",
        )


def _advised(record: GraphRecord) -> Iterator[Hint]:
    """What would be faster if a backend took what it refuses."""
    home = {name: region.id for region in record.plan.regions for name in region.nodes}
    for item in record.advice:
        regions = tuple(dict.fromkeys(home[name] for name in item.nodes if name in home))
        yield Hint(record.graph.id, regions, item.seconds, str(item))
