"""``Report``: the public answer to "what ran where, why, and what would make it faster".

Place: returned by ``backend.report()``, ``mixbackend.report()`` and ``mixbackend.explain()``.
Invariants: a value; ``to_dict`` is stable (schema 1); ``str`` is plain text of one width, the same everywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixbackend.contracts.preferences import Preference
from mixbackend.host.behind_budget import WorkBehind
from mixbackend.registry import BackendInfo
from mixbackend.reporting.events import Event
from mixbackend.reporting.records import GraphRecord
from mixbackend.reporting.summary import unmatched_rules

if TYPE_CHECKING:
    from rich.console import Console

    from mixbackend.reporting.node_answer import NodeAnswer

SCHEMA = 1
WIDTH = 125
"""Columns of the text where there is no terminal to ask."""


@dataclass(frozen=True)
class Report:
    """What was compiled so far.

    Attributes:
        graphs: in the order in which they were compiled.
        events: what went other than planned, in order.
        preferences: the rules that were in force; one that matches nothing is a warning.
        unavailable: backends that were asked for but cannot be used here.
        behind: what other processes did for these graphs; ``None`` where nothing may be done behind.
    """

    graphs: tuple[GraphRecord, ...] = ()
    events: tuple[Event, ...] = ()
    preferences: tuple[Preference, ...] = ()
    unavailable: tuple[BackendInfo, ...] = ()
    behind: WorkBehind | None = None

    @classmethod
    def joined(cls, reports: Iterable[Report]) -> Report:
        """One report of several, in their order."""
        parts = tuple(reports)
        return cls(
            graphs=tuple(graph for part in parts for graph in part.graphs),
            events=tuple(dict.fromkeys(event for part in parts for event in part.events)),
            preferences=tuple(dict.fromkeys(wish for part in parts for wish in part.preferences)),
            unavailable=tuple(dict.fromkeys(info for part in parts for info in part.unavailable)),
            behind=WorkBehind.together(part.behind for part in parts),
        )

    def warnings(self) -> tuple[str, ...]:
        """Rules that no op matches so far."""
        return unmatched_rules(self.preferences, self.graphs)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, schema 1; times in seconds, ``None`` where nothing is known."""
        return {
            "schema": SCHEMA,
            "graphs": [record.to_dict() for record in self.graphs],
            "events": [event.to_dict() for event in self.events],
            "behind": None if self.behind is None else asdict(self.behind),
        }

    def to_json(self) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def why(self, *patterns: str, placed: int = 0) -> tuple[NodeAnswer, ...]:
        """Why nodes are where they are, which backends refuse them, and what every alternative would cost.

        Args:
            patterns: names of nodes, operators or modules, shell-style (``addmm*``, ``encoder.layer.*.attention``); a
                module means everything inside.
            placed: so many (node, backend) pairs of each graph are placed again with all else free to follow, each of
                which takes as long as placing the graph did.

        Raises:
            MixbackendError: a pattern means no node; names the nearest.
        """
        from mixbackend.reporting.why import answers

        return answers(self.graphs, patterns, placed=placed)

    def to_text(self, *, width: int = WIDTH, color: bool = False, full: bool = False) -> str:
        """Readable tables, on two screens for a training step: like regions and events are one row with their number.

        Args:
            width: columns.
            color: with terminal escape codes; leave it off unless the text goes to a terminal.
            full: every region, refusal, event and advice by itself, however many there are.
        """
        from mixbackend.reporting.text import captured, plain_console

        console = plain_console(width, color)
        print_report(self, console, full)
        return captured(console)

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "mixbackend: what ran where, and why",
        against: Mapping[str, Any] | None = None,
        stacks: Mapping[tuple[str, ...], float] | None = None,
    ) -> None:
        """Write one HTML file that needs no server and no network: graph, time, hints, and the same tables.

        Args:
            path: of the file.
            title: of the page.
            against: ``to_dict`` of another report: what moved since is shown.
            stacks: seconds by stacks of functions while it was compiled, outermost first, for a flame graph.
        """
        from mixbackend.reporting.page import Told, page, page_data

        missing = tuple((info.name, info.reason) for info in self.unavailable)
        told = Told(title, self.to_dict(), self.to_text(full=True), self.warnings(), missing, against, stacks)
        Path(path).write_text(page(page_data(self.graphs, told)), encoding="utf-8")

    def __str__(self) -> str:
        return self.to_text()


def print_report(report: Report, console: Console, full: bool = False) -> None:
    """Print everything on a rich console, as ``Report.to_text`` does."""
    from mixbackend.reporting.text import print_events, print_graphs, print_line, print_unavailable

    print_graphs(report.graphs, console, full)
    for warning in report.warnings():
        print_line(console, f"warning: {warning}", "yellow")
    print_events(report.events, console, full)
    if report.behind is not None and (report.behind.used_s or report.behind.unpaid):
        print_line(console, str(report.behind))
    print_unavailable(report.unavailable, console, full)
