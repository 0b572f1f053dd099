"""What is alike becomes one row: regions, events, advice.

Place: between ``summary`` and ``text``. Input: a graph's record, events or advice. Output: groups, in the order of the
first of each.
Invariants: nothing is lost but words: every region and every event is counted in one group.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixbackend.contracts.plan import PlannedRegion
from mixbackend.reporting.events import ORDINARY, Event
from mixbackend.reporting.records import GraphRecord

if TYPE_CHECKING:
    from mixbackend.partitioner.explain import Saving


@dataclass(frozen=True, slots=True)
class RegionGroup:
    """Regions of one backend that do the same.

    Attributes:
        regions: in the plan's order.
        programs: how many different pieces of code they run.
        modules: of all of them.
        estimated_s: of all of them together.
        measured_s: likewise, ``None`` if none was measured.
    """

    regions: tuple[PlannedRegion, ...]
    programs: int
    modules: tuple[str, ...]
    estimated_s: float
    measured_s: float | None

    @property
    def name(self) -> str:
        """``r2``, or ``r2 x4`` for four of them."""
        count = len(self.regions)
        return self.regions[0].id + (f" x{count}" if count > 1 else "")


def repeated_regions(record: GraphRecord) -> tuple[RegionGroup, ...]:
    """All regions of a graph, those together that run one piece of code, as repeated layers do."""
    groups: dict[Hashable, list[PlannedRegion]] = {}
    for region in record.plan.regions:
        groups.setdefault((region.backend, _code(record, region)), []).append(region)
    return tuple(_region_group(record, regions) for regions in groups.values())


def similar_regions(record: GraphRecord) -> tuple[RegionGroup, ...]:
    """All regions of a graph, those together that have the same operators equally often, whatever their sizes."""
    groups: dict[Hashable, list[PlannedRegion]] = {}
    for region in record.plan.regions:
        groups.setdefault((region.backend, *record.ops(region).items()), []).append(region)
    return tuple(_region_group(record, regions) for regions in groups.values())


def _code(record: GraphRecord, region: PlannedRegion) -> str:
    """Id of the region that the code was made for."""
    return record.record(region).reused_from or f"{record.graph.id}/{region.id}"


def _region_group(record: GraphRecord, regions: Sequence[PlannedRegion]) -> RegionGroup:
    measured = [record.record(region).measured_s for region in regions]
    known = [seconds for seconds in measured if seconds is not None]
    return RegionGroup(
        tuple(regions),
        len({_code(record, region) for region in regions}),
        tuple(dict.fromkeys(path for region in regions for path in record.modules(region))),
        sum(region.estimated_s for region in regions),
        sum(known) * len(regions) / len(known) if known else None,
    )


def narrowest(record: GraphRecord, group: RegionGroup) -> PlannedRegion:
    """The region of a group that the next best backend would cost least more; the first if no margin is known."""
    known = record.alternatives
    margins = {region.id: known[region.id].margin_s for region in group.regions if region.id in known}
    least = min((margin for margin in margins.values() if margin is not None), default=None)
    return next(
        (region for region in group.regions if least is not None and margins.get(region.id) == least), group.regions[0]
    )


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events of one kind about one backend; where they tell of trouble, of one wording.

    Attributes:
        first: the first of them.
        count: how many.
        wordings: how many different details they have.
        one_place: whether all are about the same graph and region.
    """

    first: Event
    count: int
    wordings: int
    one_place: bool

    @property
    def detail(self) -> str:
        """The first's words, and how many others there are."""
        others = self.wordings - 1
        return self.first.detail + (f" ({others} more of other words)" if others else "")


def fold_events(events: Sequence[Event]) -> tuple[EventGroup, ...]:
    """Events counted by kind; those that tell of trouble by their words too."""
    groups: dict[Hashable, list[Event]] = {}
    for event in events:
        words = "" if event.kind in ORDINARY else event.detail
        groups.setdefault((event.kind, event.backend, words), []).append(event)
    return tuple(
        EventGroup(
            alike[0],
            len(alike),
            len({event.detail for event in alike}),
            len({(event.graph, event.region) for event in alike}) == 1,
        )
        for alike in groups.values()
    )


def fold_advice(advice: Sequence[Saving]) -> tuple[Saving, ...]:
    """The largest saving by each backend, code and operator: what single nodes save is a part of it."""
    largest: dict[Hashable, Saving] = {}
    for saving in advice:
        key = (saving.backend, saving.code, saving.op)
        if key not in largest or saving.seconds > largest[key].seconds:
            largest[key] = saving
    return tuple(largest.values())
