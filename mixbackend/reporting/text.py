"""The report as tables for people.

Place: behind ``Report.to_text``, ``Report.to_html`` and the command line.
Input: a report and a rich console; the caller decides on width and colour. Output: printed on the console.
Invariants: equal reports give equal text for one width; whatever comes from models and backends is shown literally.
Non-goals: completeness in long lists; the dictionary has everything.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mixbackend.contracts.plan import PlannedRegion
from mixbackend.partitioner.portable import FIXED
from mixbackend.reporting import summary
from mixbackend.reporting.decided import decided
from mixbackend.reporting.records import GraphRecord

if TYPE_CHECKING:
    from mixbackend.reporting.report import Report

MOST_REGIONS = 60
MOST_REFUSALS = 20


def print_report(report: Report, console: Console) -> None:
    """Print everything."""
    if not report.graphs:
        print_line(console, "nothing was compiled yet")
    for record in report.graphs:
        _print_graph(record, console)
    for warning in report.warnings():
        print_line(console, f"warning: {warning}", "yellow")
    _print_events(report, console)
    _print_unavailable(report, console)


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
    console.print(_region_table(record))
    hidden = len(plan.regions) - MOST_REGIONS
    if hidden > 0:
        print_line(console, f"  the {hidden} cheapest regions are left out here; to_dict() has them all")
    owners = ", ".join(f"{backend} {count}" for backend, count in record.nodes_per_backend().items())
    print_line(console, f"  nodes per backend: {owners or 'none'}")
    _print_why(record, console)
    _print_refusals(record, console)
    print_line(console, "")


def _region_table(record: GraphRecord) -> Table:
    headings = ["region", "backend", "nodes", "ops", "modules", "estimated ms", "measured ms"]
    headings += ["margin ms"] if record.alternatives else []
    table = plain_table([*headings, "compiled"], numbers={"nodes", "estimated ms", "measured ms"})
    for region in _costliest(record.plan.regions):
        compiled = record.record(region)
        margin = [Text(summary.next_best(record, region))] if record.alternatives else []
        table.add_row(
            region.id,
            Text(region.backend),
            str(len(region.nodes)),
            Text(summary.short_ops(record.ops(region))),
            Text(summary.short_modules(record.modules(region))),
            summary.milliseconds(region.estimated_s),
            summary.milliseconds(compiled.measured_s),
            *margin,
            Text("; ".join([_how_compiled(record, region), *compiled.notes])),
        )
    return table


def _costliest(regions: Sequence[PlannedRegion]) -> list[PlannedRegion]:
    """At most ``MOST_REGIONS`` of them, the cheapest left out, in their order."""
    ranked = sorted(range(len(regions)), key=lambda index: (-regions[index].estimated_s, index))
    return [regions[index] for index in sorted(ranked[:MOST_REGIONS])]


def _how_compiled(record: GraphRecord, region: PlannedRegion) -> str:
    if region.id not in record.record_by_id:
        return "no"
    compiled = record.record(region)
    if compiled.reused_from is not None:
        return f"same as {compiled.reused_from}"
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
    how = decided(record)
    if how.by != "estimates":
        print_line(console, f"  {summary.how_decided(how)}")
    for regime in record.regimes:
        print_line(console, f"  {summary.describe_regime(regime)}")
    if record.layout.estimated_s:
        print_line(console, f"  {summary.compare_layouts(record)}")
    if plan.optimal:
        print_line(console, "  no legal placement is cheaper under these costs")
    elif plan.search != FIXED:  # a plan that was made before has no bound
        share = plan.bound_gap / plan.estimated_s if plan.estimated_s else 0.0
        print_line(
            console,
            f"  the best placement can be at most {summary.milliseconds(plan.bound_gap)} ms ({share:.1%}) cheaper "
            f"(search: {plan.search})",
        )
    for advice in record.advice:
        print_line(console, f"  faster: {advice}", "green")


def _print_refusals(record: GraphRecord, console: Console) -> None:
    groups = summary.group_refusals(record)
    if not groups:
        return
    table = plain_table(["backend", "refuses", "nodes", "because", "in words"], numbers={"nodes"})
    for group in groups[:MOST_REFUSALS]:
        row = (group.backend, summary.short_op(group.op), str(group.nodes), group.code, group.detail)
        table.add_row(*map(Text, row))
    console.print(table)
    if len(groups) > MOST_REFUSALS:
        print_line(console, f"  {len(groups) - MOST_REFUSALS} more kinds of refusals; to_dict() has them all")


def _print_events(report: Report, console: Console) -> None:
    if not report.events:
        return
    table = plain_table(["event", "graph", "region", "backend", "what happened"])
    for event in report.events:
        table.add_row(*map(Text, (event.kind, event.graph, event.region, event.backend, event.detail)))
    console.print(table)


def _print_unavailable(report: Report, console: Console) -> None:
    for info in report.unavailable:
        print_line(console, f"not available here: {info.name}: {info.reason}")


def plain_table(headings: Iterable[str], numbers: Iterable[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    right = set(numbers)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
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
