"""What the page of a report shows, as plain data.

Place: between ``Report`` and ``inline``. Input: what a report holds and says. Output: a dictionary for JSON.
Invariants: figures are those of ``Report.to_dict``, which is in it as it is; what it has not (edges, the seconds of
nodes) is beside it, under ``graphs``. Equal reports give equal data.
Units: seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mixbackend.reporting.summary as summary
from mixbackend.contracts.errors import PlacementError
from mixbackend.contracts.graph import OpGraph
from mixbackend.reporting.page.hints import hints
from mixbackend.reporting.records import GraphRecord
from mixbackend.reporting.trials import finite

Stacks = Mapping[tuple[str, ...], float]
"""Seconds by stacks of functions, outermost first."""

_LEAST_SHARE = 0.002
"""Functions that took less of the time are not shown."""
_CALLER_SHARE = 0.97
"""An outermost function inside of which more was spent only called the rest, and is not shown."""


@dataclass(frozen=True)
class Told:
    """What a report says by itself, and what it is shown with.

    Attributes:
        title: of the page.
        report: ``Report.to_dict``.
        text: ``Report.to_text``.
        warnings: of rules.
        unavailable: names of backends and why they cannot be used.
        against: ``to_dict`` of an earlier report, to be compared with.
        stacks: where the first call spent its time.
    """

    title: str
    report: Mapping[str, Any]
    text: str
    warnings: tuple[str, ...] = ()
    unavailable: tuple[tuple[str, str], ...] = ()
    against: Mapping[str, Any] | None = None
    stacks: Stacks | None = None


def page_data(records: Sequence[GraphRecord], told: Told) -> dict[str, Any]:
    """All that is shown of some graphs."""
    return {
        "title": told.title,
        "report": dict(told.report),
        "text": told.text,
        "warnings": list(told.warnings),
        "unavailable": [list(pair) for pair in told.unavailable],
        "graphs": [_graph(record) for record in records],
        "hints": [hint.to_dict() for record in records for hint in hints(record)],
        "against": None if told.against is None else dict(told.against),
        "compiling": None if not told.stacks else flame(told.stacks),
    }


def _graph(record: GraphRecord) -> dict[str, Any]:
    graph = record.graph
    places = {node.name: place for place, node in enumerate(graph.placed_nodes)}
    home = {name: number for number, region in enumerate(record.plan.regions) for name in region.nodes}
    seconds = node_seconds(record)
    rows = [
        [node.name, node.op, node.module, node.source, home[node.name], finite(seconds.get(node.name, 0.0))]
        for node in graph.placed_nodes
    ]
    return {"id": graph.id, "sentences": _sentences(record), "nodes": rows, "edges": _edges(graph, places)}


def _edges(graph: OpGraph, places: Mapping[str, int]) -> list[list[int]]:
    """Which node reads values of which, by places; through numbers, which are not placed, too."""
    sources: dict[str, set[int]] = {}
    edges: list[list[int]] = []
    for node in graph.nodes:
        read = {place for name in node.references() for place in sources.get(name, ())}
        place = places.get(node.name)
        sources[node.name] = read if place is None else {place}
        edges += [] if place is None else [[source, place] for source in sorted(read)]
    return edges


def node_seconds(record: GraphRecord) -> dict[str, float]:
    """Of every node: its share of its region's time, as measured or else as estimated."""
    estimated = _estimates(record)
    found: dict[str, float] = {}
    for region in record.plan.regions:
        parts = [max(0.0, estimated.get(name, 0.0)) for name in region.nodes]
        measured = record.record(region).measured_s
        whole = region.estimated_s if measured is None else measured
        total = sum(parts)
        shares = [part / total for part in parts] if total else [1.0 / len(parts)] * len(parts)
        found.update(zip(region.nodes, [share * whole for share in shares], strict=True))
    return found


def _estimates(record: GraphRecord) -> dict[str, float]:
    try:
        return {} if record.counterfactuals is None else record.counterfactuals.seconds()
    except PlacementError:
        return {}


def _sentences(record: GraphRecord) -> list[str]:
    """What the text says below the table of regions."""
    told = ["" if summary.was_measured(record) else summary.compare_single(record), summary.describe_bodies(record)]
    told += [summary.compare_trials(record)] if record.tuning is not None else []
    told += [summary.describe_selection(record.selection)] if record.selection is not None else []
    told += [summary.how_decided(record.decided)]
    told += [summary.describe_regime(regime) for regime in record.regimes]
    told += [summary.compare_layouts(record)] if record.layout.estimated_s else []
    told += [summary.how_good(record)]
    return [text for text in told if text]


def flame(stacks: Stacks) -> dict[str, Any]:
    """Stacks as a tree of ``name``, ``value`` and ``children``, the costliest first, without what took no time."""
    total = sum(stacks.values())
    rows = [*stacks.items()]
    while True:
        first: dict[str, float] = {}
        for stack, seconds in rows:
            if stack:
                first[stack[0]] = first.get(stack[0], 0.0) + seconds
        outer, most = max(first.items(), key=lambda item: item[1], default=("", 0.0))
        if most < _CALLER_SHARE * total:
            return _frame("all", rows, _LEAST_SHARE * total)
        rows = [(stack[1:] if stack[:1] == (outer,) else stack, seconds) for stack, seconds in rows]


def _frame(name: str, stacks: Sequence[tuple[tuple[str, ...], float]], least: float) -> dict[str, Any]:
    inner: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for stack, seconds in stacks:
        if stack:
            inner.setdefault(stack[0], []).append((stack[1:], seconds))
    children = [_frame(child, rows, least) for child, rows in inner.items() if sum(row[1] for row in rows) >= least]
    children.sort(key=lambda child: (-child["value"], child["name"]))
    return {"name": name, "value": sum(seconds for _, seconds in stacks), "children": children}
