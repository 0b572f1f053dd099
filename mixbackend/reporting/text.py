"""The report as tables for people.

Place: behind ``Report.to_text``, ``Report.to_html`` and the command line.
Input: the parts of a report and a rich console; the caller decides on width, colour and extent. Output: printed text.
Invariants: equal reports give equal text for one width; whatever comes from models and backends is shown literally.
Unless everything is wanted, a training step (two graphs) takes at most 100 lines of 125 columns: like things are one
row, a row is one line, and what is left out is counted.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import mixbackend.reporting.summary as summary
from mixbackend.contracts.plan import PlannedRegion
from mixbackend.registry import BackendInfo
from mixbackend.reporting.events import Event
from mixbackend.reporting.folding import (
    RegionGroup,
    fold_advice,
    fold_events,
    narrowest,
    repeated_regions,
    similar_regions,
)
from mixbackend.reporting.records import GraphRecord

MOST_GRAPHS = 2
"""So many graphs, the costliest, have tables; the others have a line each."""
MOST_LINES_OF_GRAPHS = 20
MOST_EVENTS = 7
_EVENT_CHARACTERS = 150
_OTHER_COLUMNS, _MARGIN_COLUMN = 78, 13
"""Characters of a table of regions beside the ops and the modules, which are cut off at what is left."""
_REFUSAL_COLUMNS = 77
"""Characters of a table of refusals beside the words of the backend."""
_LEAST_CUT = 14


@dataclass(frozen=True, slots=True)
class Extent:
    """How many rows of a graph are shown; ``None`` for all of them, as they are."""

    regions: int | None = None
    refusals: int | None = None
    advice: int | None = None

    @property
    def full(self) -> bool:
        """Whether nothing is folded, cut or left out."""
        return self.regions is None


FULL = Extent()
OF_ONE, OF_TWO = Extent(24, 12, 4), Extent(11, 6, 2)
"""Where one graph has tables, and where two have."""


def print_graphs(records: Sequence[GraphRecord], console: Console, full: bool = True) -> None:
    """Print the regions of each graph, and why they are where they are.

    Args:
        full: every region of every graph; otherwise like regions are one row, and the cheapest are left out.
    """
    if not records:
        print_line(console, "nothing was compiled yet")
    if full:
        for record in records:
            _print_graph(record, console, FULL)
        return
    extent = OF_ONE if len(records) == 1 else OF_TWO
    ranked = sorted(range(len(records)), key=lambda place: (-records[place].plan.estimated_s, place))
    tables, lines = set(ranked[:MOST_GRAPHS]), set(ranked[MOST_GRAPHS : MOST_GRAPHS + MOST_LINES_OF_GRAPHS])
    for place, record in enumerate(records):
        if place in tables:
            _print_graph(record, console, extent)
        elif place in lines:
            print_line(console, f"{_title(record)}; nodes per backend: {_owners(record)}", "bold")
    _print_left_out(console, len(records) - len(tables) - len(lines), "cheapest graphs")


def _print_graph(record: GraphRecord, console: Console, extent: Extent) -> None:
    print_line(console, "")
    print_line(console, _title(record), "bold")
    groups = repeated_regions(record) if extent.full else similar_regions(record)
    shown = _costliest(groups, extent.regions)
    console.print(_region_table(record, shown, console.width, extent.full))
    _print_left_out(console, len(groups) - len(shown), "cheapest kinds of regions")
    print_line(console, f"  nodes per backend: {_owners(record)}")
    bodies = summary.describe_bodies(record)
    if bodies:
        print_line(console, f"  {bodies}")
    _print_why(record, console)
    _print_advice(record, console, extent)
    _print_refusals(record, console, extent)


def _title(record: GraphRecord) -> str:
    graph = record.graph
    shape = "dynamic shapes" if graph.dynamic else "static shapes"
    return (
        f"{graph.id}: {graph.phase}, {len(graph.placed_nodes)} nodes in {len(record.plan.regions)} regions, {shape}, "
        f"{summary.graph_seconds(record)}"
    )


def _owners(record: GraphRecord) -> str:
    return ", ".join(f"{backend} {count}" for backend, count in record.nodes_per_backend().items()) or "none"


def _print_left_out(console: Console, count: int, what: str) -> None:
    if count > 0:
        print_line(console, f"  the {count} {what} are left out here; to_text(full=True) and to_dict() have them all")


def _region_table(record: GraphRecord, groups: Sequence[RegionGroup], width: int, full: bool) -> Table:
    headings = ["region", "backend", "nodes", "ops", "modules", "estimated ms", "measured ms"]
    headings += ["margin ms"] if record.alternatives else []
    others = _OTHER_COLUMNS + (_MARGIN_COLUMN if record.alternatives else 0)
    cut = max(_LEAST_CUT, (width - others) // 2)
    widths = {"region": 8, "backend": 11, "ops": cut, "modules": cut, "estimated ms": 9, "measured ms": 8}
    one_line = ("ops", "modules") if full else (*headings[:5], *headings[7:], "compiled")
    table = plain_table([*headings, "compiled"], {"nodes", "estimated ms", "measured ms"}, widths, one_line)
    for group in groups:
        region = group.regions[0]
        margin = [Text(summary.next_best(record, narrowest(record, group)))] if record.alternatives else []
        table.add_row(
            group.name,
            Text(region.backend),
            str(sum(len(item.nodes) for item in group.regions)),
            Text(summary.short_ops(record.ops(region), most=3)),
            Text(summary.short_modules(group.modules, most=2)),
            summary.milliseconds(group.estimated_s),
            summary.milliseconds(group.measured_s),
            *margin,
            Text("; ".join([_how_compiled(record, group), *record.record(region).notes])),
        )
    return table


def _costliest(groups: Sequence[RegionGroup], most: int | None) -> list[RegionGroup]:
    """At most so many of them, the cheapest left out, in their order."""
    ranked = sorted(range(len(groups)), key=lambda index: (-groups[index].estimated_s, index))
    return [groups[index] for index in sorted(ranked[:most])]


def _how_compiled(record: GraphRecord, group: RegionGroup) -> str:
    region: PlannedRegion = group.regions[0]
    if region.id not in record.record_by_id:
        return "no"
    compiled = record.record(region)
    times = f" x{group.programs}" if group.programs > 1 else ""
    if compiled.reused_from is not None:
        return f"same as {compiled.reused_from.removeprefix(f'{record.graph.id}/')}{times}"
    return ("from cache" if compiled.cached else "here") + times


def _print_why(record: GraphRecord, console: Console) -> None:
    plan, measured = record.plan, summary.was_measured(record)
    single = ", ".join(
        f"{backend} {summary.milliseconds(seconds)}"
        for backend, seconds in sorted(plan.single_backend_s, key=lambda item: (item[1], item[0]))
    )
    if single:
        print_line(console, f"  each backend alone (estimated ms, eager where it cannot run): {single}")
    # What was measured, or made before, is not what the search and its estimates speak of.
    if single and not measured:
        print_line(console, f"  {summary.compare_single(record)}")
    if record.tuning is not None:
        print_line(console, f"  {summary.compare_trials(record)}")
    if record.selection is not None:
        print_line(console, f"  {summary.describe_selection(record.selection)}")
    how = record.decided
    if how.by != "estimates":
        print_line(console, f"  {summary.how_decided(how)}")
    for regime in record.regimes:
        print_line(console, f"  {summary.describe_regime(regime)}")
    if record.layout.estimated_s:
        print_line(console, f"  {summary.compare_layouts(record)}")
    proved = summary.how_good(record)
    if proved:
        print_line(console, f"  {proved}")


def _print_advice(record: GraphRecord, console: Console, extent: Extent) -> None:
    advice = record.advice if extent.full else fold_advice(record.advice)[: extent.advice]
    for saving in advice:
        print_line(console, f"  faster: {saving}", "green")


def _print_refusals(record: GraphRecord, console: Console, extent: Extent) -> None:
    groups = summary.group_refusals(record)
    if not groups:
        return
    most = None if extent.full else 3
    one_line = () if extent.full else ("backend", "refuses", "because", "in words")
    words = max(_LEAST_CUT, console.width - _REFUSAL_COLUMNS)
    widths = {} if extent.full else {"backend": 11, "refuses": 40, "because": 11, "in words": words}
    table = plain_table(["backend", "refuses", "nodes", "because", "in words"], {"nodes"}, widths, one_line)
    ranked = sorted(groups, key=lambda group: -group.nodes)[: extent.refusals]
    for group in [group for group in groups if group in ranked]:
        row = (group.backend, summary.short_ops(group.ops, most), str(group.nodes), group.code, group.detail)
        table.add_row(*map(Text, row))
    console.print(table)
    _print_left_out(console, len(groups) - len(ranked), "rarest kinds of refusals")


def print_events(events: Sequence[Event], console: Console, full: bool = True) -> None:
    """Print what went other than planned; those of one kind counted, unless everything is wanted."""
    if not events:
        return
    table = plain_table(["event", "graph", "region", "backend", "what happened"])
    groups = () if full else fold_events(events)
    for event in events if full else ():
        table.add_row(*map(Text, (event.kind, event.graph, event.region, event.backend, event.detail)))
    for group in groups[:MOST_EVENTS]:
        first = group.first
        place = (first.graph, first.region) if group.one_place else ("several", "")
        kind = first.kind + (f" x{group.count}" if group.count > 1 else "")
        detail = summary.clipped(group.detail, _EVENT_CHARACTERS)
        table.add_row(*map(Text, (kind, *place, first.backend, detail)))
    console.print(table)
    _print_left_out(console, len(groups) - MOST_EVENTS, "last kinds of events")


def print_unavailable(backends: Sequence[BackendInfo], console: Console, full: bool = True) -> None:
    """Print which backends cannot be used, and why; without the reasons where one line cannot hold them."""
    names: dict[str, list[str]] = {}
    for info in backends:
        names.setdefault(info.reason, []).append(info.name)
    if not names:
        return
    told = "not available here: " + "; ".join(f"{', '.join(them)}: {reason}" for reason, them in names.items())
    if not full and len(told) > console.width:
        listed = ", ".join(name for them in names.values() for name in them)
        told = summary.clipped(f"not available here (`mixbackend backends` says why): {listed}", console.width)
    print_line(console, told)


def plain_table(
    headings: Iterable[str],
    numbers: Iterable[str] = (),
    widths: Mapping[str, int] | None = None,
    one_line: Iterable[str] = (),
) -> Table:
    """A table without lines between rows; what does not fit is folded, or cut off in columns of one line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    right, cut = set(numbers), set(one_line)
    for heading in headings:
        table.add_column(
            heading,
            justify="right" if heading in right else "left",
            overflow="ellipsis" if heading in cut else "fold",
            no_wrap=heading in cut,
            width=(widths or {}).get(heading),
        )
    return table


def print_line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style))


def plain_console(width: int, color: bool) -> Console:
    """A console that keeps what is printed, whatever the environment says."""
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        _environ={},
    )


def captured(console: Console) -> str:
    """What was printed on a ``plain_console``, without blanks at the ends."""
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
