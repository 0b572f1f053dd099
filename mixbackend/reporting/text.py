"""The report as tables for people.

Place: behind ``Report.to_text``, ``Report.to_html`` and the command line.
Input: the parts of a report and a rich console; the caller decides on width and colour. Output: printed on the console.
Invariants: equal reports give equal text for one width; whatever comes from models and backends is shown literally.
Non-goals: completeness in long lists; the dictionary has everything.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import mixbackend.reporting.summary as summary
from mixbackend.contracts.plan import PlannedRegion
from mixbackend.partitioner.plan_canonical import FIXED
from mixbackend.registry import BackendInfo
from mixbackend.reporting.events import Event
from mixbackend.reporting.records import GraphRecord

MOST_REGIONS = 24
MOST_REFUSALS = 12
_OTHER_COLUMNS, _MARGIN_COLUMN = 88, 12
"""Characters of a table of regions beside the ops and the modules, which are cut off at what is left."""
_LEAST_CUT = 16


def print_graphs(records: Sequence[GraphRecord], console: Console) -> None:
    """Print the regions of each graph, and why they are where they are."""
    if not records:
        print_line(console, "nothing was compiled yet")
    for record in records:
        _print_graph(record, console)


def _print_graph(record: GraphRecord, console: Console) -> None:
    plan, graph = record.plan, record.graph
    shape = "dynamic shapes" if graph.dynamic else "static shapes"
    print_line(console, "")
    print_line(
        console,
        f"{graph.id}: {graph.phase}, {len(graph.placed_nodes)} nodes in {len(plan.regions)} regions, {shape}, "
        f"estimated {summary.milliseconds(plan.estimated_s)} ms",
        "bold",
    )
    groups = summary.repeated_regions(record)
    console.print(_region_table(record, groups, console.width))
    hidden = len(groups) - MOST_REGIONS
    if hidden > 0:
        print_line(console, f"  the {hidden} cheapest kinds of regions are left out here; to_dict() has them all")
    owners = ", ".join(f"{backend} {count}" for backend, count in record.nodes_per_backend().items())
    print_line(console, f"  nodes per backend: {owners or 'none'}")
    bodies = summary.describe_bodies(record)
    if bodies:
        print_line(console, f"  {bodies}")
    _print_why(record, console)
    _print_refusals(record, console)
    print_line(console, "")


def _region_table(record: GraphRecord, groups: Sequence[summary.RegionGroup], width: int) -> Table:
    headings = ["region", "backend", "nodes", "ops", "modules", "estimated ms", "measured ms"]
    headings += ["margin ms"] if record.alternatives else []
    others = _OTHER_COLUMNS + (_MARGIN_COLUMN if record.alternatives else 0)
    cut = max(_LEAST_CUT, (width - others) // 2)
    widths = {"region": 8, "backend": 11, "ops": cut, "modules": cut, "estimated ms": 9, "measured ms": 8}
    table = plain_table([*headings, "compiled"], {"nodes", "estimated ms", "measured ms"}, widths, ("ops", "modules"))
    for group in _costliest(groups):
        region = group.regions[0]
        margin = [Text(summary.next_best(record, region))] if record.alternatives else []
        table.add_row(
            group.name,
            Text(region.backend),
            str(sum(len(item.nodes) for item in group.regions)),
            Text(summary.short_ops(record.ops(region), most=3)),
            Text(summary.short_modules(group.modules, most=2)),
            summary.milliseconds(group.estimated_s),
            summary.milliseconds(group.measured_s),
            *margin,
            Text("; ".join([_how_compiled(record, region), *record.record(region).notes])),
        )
    return table


def _costliest(groups: Sequence[summary.RegionGroup]) -> list[summary.RegionGroup]:
    """At most ``MOST_REGIONS`` of them, the cheapest left out, in their order."""
    ranked = sorted(range(len(groups)), key=lambda index: (-groups[index].estimated_s, index))
    return [groups[index] for index in sorted(ranked[:MOST_REGIONS])]


def _how_compiled(record: GraphRecord, region: PlannedRegion) -> str:
    if region.id not in record.record_by_id:
        return "no"
    compiled = record.record(region)
    if compiled.reused_from is not None:
        return f"same as {compiled.reused_from.removeprefix(f'{record.graph.id}/')}"
    return "from cache" if compiled.cached else "here"


def _print_why(record: GraphRecord, console: Console) -> None:
    plan = record.plan
    single = ", ".join(
        f"{backend} {summary.milliseconds(seconds)}"
        for backend, seconds in sorted(plan.single_backend_s, key=lambda item: (item[1], item[0]))
    )
    if single:
        print_line(console, f"  each backend alone (estimated ms, eager where it cannot run): {single}")
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
    # What was measured, or made before, is not what the search has bounds for.
    if how.by == "estimates" and plan.search != FIXED:
        print_line(console, f"  {summary.how_good(plan)}")
    for advice in record.advice:
        print_line(console, f"  faster: {advice}", "green")


def _print_refusals(record: GraphRecord, console: Console) -> None:
    groups = summary.group_refusals(record)
    if not groups:
        return
    table = plain_table(["backend", "refuses", "nodes", "because", "in words"], numbers={"nodes"})
    for group in groups[:MOST_REFUSALS]:
        row = (group.backend, summary.short_ops(group.ops, most=3), str(group.nodes), group.code, group.detail)
        table.add_row(*map(Text, row))
    console.print(table)
    if len(groups) > MOST_REFUSALS:
        print_line(console, f"  {len(groups) - MOST_REFUSALS} more kinds of refusals; to_dict() has them all")


def print_events(events: Sequence[Event], console: Console) -> None:
    """Print what went other than planned."""
    if not events:
        return
    table = plain_table(["event", "graph", "region", "backend", "what happened"])
    for event in events:
        table.add_row(*map(Text, (event.kind, event.graph, event.region, event.backend, event.detail)))
    console.print(table)


def print_unavailable(backends: Sequence[BackendInfo], console: Console) -> None:
    """Print which backends cannot be used, those with one reason on one line."""
    names: dict[str, list[str]] = {}
    for info in backends:
        names.setdefault(info.reason, []).append(info.name)
    if names:
        reasons = "; ".join(f"{', '.join(of_reason)}: {reason}" for reason, of_reason in names.items())
        print_line(console, f"not available here: {reasons}")


def plain_table(
    headings: Iterable[str],
    numbers: Iterable[str] = (),
    widths: Mapping[str, int] | None = None,
    one_line: Iterable[str] = (),
) -> Table:
    """A table without lines between rows; what does not fit is folded, or cut off in columns of one line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
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
