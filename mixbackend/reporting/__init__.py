"""What ran where, why, and what would make it faster.

Place: last; fed by the runtime with values of earlier stages, read by people and programs.
Files: ``events`` (what went other than planned), ``records`` (facts and the stable dictionary), ``summary`` (shortening
for people), ``text`` (tables), ``report`` (the public object); ``decided``, ``why``, ``node_answer``: who decided what, by
how much, and what else would have cost.
"""

from mixbackend.reporting.events import EVENT_KINDS, Event, EventKind, EventLog
from mixbackend.reporting.records import GraphRecord, RegionRecord
from mixbackend.reporting.report import Report
from mixbackend.reporting.why import NodeAnswer

__all__ = ["EVENT_KINDS", "Event", "EventKind", "EventLog", "GraphRecord", "NodeAnswer", "RegionRecord", "Report"]
