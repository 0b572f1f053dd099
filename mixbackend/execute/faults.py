"""Faults: what went wrong in the regions of one program while they ran.

Place: written by slots in the middle of a call, read by the holder of the program once the call is over.
Input: a slot, and what happened. Output: ``Fault`` values in their order; events of checks that were not made.
Invariants: nothing here raises into a call or calls back; code that failed is left by all slots that share it at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mixbackend.execute.region_errors import FailureKind, describe_region
from mixbackend.execute.slots import RegionSlot
from mixbackend.reporting import Event
from mixbackend.reporting.events import EventLog


@dataclass(frozen=True)
class Fault:
    """One failure of a region.

    Attributes:
        slot: the region; eager answers its calls from now on.
        kind: whether it raised or was wrong.
        text: in words.
        is_news: whether the code had not failed before, here or elsewhere.
    """

    slot: RegionSlot
    kind: FailureKind
    text: str
    is_news: bool


class Faults:
    """See the module's docstring.

    Args:
        graph_id: name of the graph in events.
        events: where checks that were not made are told.
    """

    def __init__(self, graph_id: str, events: EventLog) -> None:
        self._graph_id = graph_id
        self._events = events
        self.found: deque[Fault] = deque()
        """Not looked at yet."""

    def add(self, slot: RegionSlot, kind: FailureKind, text: str) -> None:
        """The code of a slot failed, or was found wrong."""
        self.found.append(Fault(slot, kind, text, slot.code.fail(text, slot)))

    def unverified(self, slot: RegionSlot, text: str) -> None:
        """A check could not be made, or proved nothing."""
        detail = f"{text} ({describe_region(slot.region)})"
        self._events.append(Event("unverified", self._graph_id, region_name(slot), slot.backend.name, detail))


def region_name(slot: RegionSlot) -> str:
    """Of the slot's region within its graph."""
    return slot.region.id.rpartition("/")[2]
