"""What ran where, why, and what would make it faster.

Place: last; fed by the runtime with values of earlier stages, read by people and programs.
Files: ``events`` (what went other than planned); ``trials`` and ``decided`` (what was measured, how a placement was
decided); ``records`` (facts and the stable dictionary); ``summary`` (shortening for people); ``folding`` (like things
in one row); ``text`` (tables); ``node_answer`` and ``why`` (why a node is where it is); ``report`` (the public object).
Each imports only what is named before it.

Importing it loads no tables and no console: ``NodeAnswer`` is loaded at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mixbackend.reporting.events import EVENT_KINDS, Event, EventKind, EventLog
from mixbackend.reporting.records import GraphRecord, RegionRecord
from mixbackend.reporting.report import Report

if TYPE_CHECKING:
    from mixbackend.reporting.node_answer import NodeAnswer

__all__ = ["EVENT_KINDS", "Event", "EventKind", "EventLog", "GraphRecord", "NodeAnswer", "RegionRecord", "Report"]


def __getattr__(name: str) -> Any:
    if name == "NodeAnswer":
        from mixbackend.reporting.node_answer import NodeAnswer

        return NodeAnswer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
