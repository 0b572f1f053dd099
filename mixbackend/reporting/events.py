"""Events: everything that went other than the first plan had it.

Place: appended by the runtime from any thread; shown by the report.
Invariants: nothing is silent: each distinct event is kept, and logged once, through the logger ``mixbackend``.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from mixbackend.backends.common import forks

EventKind = Literal[
    "repair",
    "quarantine",
    "fallback",
    "weights_rebuilt",
    "recompile",
    "graph_break",
    "verify_failed",
    "unverified",
    "threads",
    "tuning",
    "lock",
    "cuda_graphs",
    "backend_error",
    "storage",
    "ranks",
    "package",
]
EVENT_KINDS: tuple[str, ...] = get_args(EventKind)

ORDINARY = frozenset({"weights_rebuilt", "recompile", "graph_break", "threads", "tuning", "cuda_graphs", "ranks"})
"""Kinds that tell of no trouble."""

logger = logging.getLogger("mixbackend")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: one of ``EVENT_KINDS``.
        graph: id of the graph, ``""`` if it is about none.
        region: id of the region within the graph, ``""`` if it is about the whole graph.
        backend: that it is about, ``""`` if it is about none.
        detail: what happened, in words.
    """

    kind: EventKind
    graph: str
    region: str
    backend: str
    detail: str

    def __post_init__(self) -> None:
        if self.kind not in EVENT_KINDS:
            raise ValueError(f"{self.kind!r} is not a kind of event; the kinds are {', '.join(EVENT_KINDS)}")

    def to_dict(self) -> dict[str, str]:
        """The fields as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        place = "/".join(part for part in (self.graph, self.region) if part)
        about = " ".join(part for part in (place, f"on {self.backend}" if self.backend else "") if part)
        return f"{self.kind} {about}: {self.detail}" if about else f"{self.kind}: {self.detail}"


class EventLog:
    """Events in the order in which they first happened. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._events: dict[Event, None] = {}

    def append(self, event: Event) -> None:
        """Keep and log an event; one that is known already is neither kept nor logged again."""
        with self._lock:
            if event in self._events:
                return
            self._events[event] = None
        logger.log(logging.INFO if event.kind in ORDINARY else logging.WARNING, "%s", event)

    def events(self) -> tuple[Event, ...]:
        """All of them so far."""
        with self._lock:
            return tuple(self._events)

    def __len__(self) -> int:
        return len(self._events)
