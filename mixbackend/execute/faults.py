"""Faults: what went wrong in the regions of one program while they ran.

Place: written by executors in the middle of a call, read by the holder of the program once the call is over.
Input: an executor, and what happened. Output: ``Fault`` values in their order; events of checks that were not made.
Invariants: nothing here raises into a call or calls back; code that failed is left by all executors that share it at
once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mixbackend.execute.region_errors import FailureKind, describe_region
from mixbackend.execute.region_executor import RegionExecutor
from mixbackend.reporting import Event
from mixbackend.reporting.events import EventLog


@dataclass(frozen=True)
class Fault:
    """One failure of a region.

    Attributes:
        executor: the region; eager answers its calls from now on.
        kind: whether it raised or was wrong.
        text: in words.
        is_news: whether the code had not failed before, here or elsewhere.
    """

    executor: RegionExecutor
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

    def add(self, executor: RegionExecutor, kind: FailureKind, text: str) -> None:
        """The code of an executor failed, or was found wrong."""
        self.found.append(Fault(executor, kind, text, executor.code.fail(text, executor)))

    def unverified(self, executor: RegionExecutor, text: str) -> None:
        """A check could not be made, or proved nothing."""
        detail = f"{text} ({describe_region(executor.region)})"
        self._events.append(Event("unverified", self._graph_id, region_name(executor), executor.backend.name, detail))


def region_name(executor: RegionExecutor) -> str:
    """Of the executor's region within its graph."""
    return executor.region.id.rpartition("/")[2]
