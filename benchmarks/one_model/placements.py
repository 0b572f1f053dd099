"""What a report says about one model, added up over its graphs.

Place: the worker condenses ``backend.report().to_dict()`` with it; the suite's tables are made of it.
Input and output: plain data. Units: seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from mixbackend.contracts.opclass import op_class_of

LIBRARY_CLASSES = frozenset({"matmul", "convolution", "attention", "random", "view"})
"""Classes that are no loops over elements: libraries own them, torch's random stream does, or nothing is computed."""


def summarise(report: Mapping[str, Any]) -> dict[str, Any]:
    """Nodes and regions per backend, estimates and events of all graphs of a report.

    ``single_backend_s`` holds only backends that have an estimate for every graph: a sum over some of the graphs
    would look faster than it is.
    """
    graphs = report.get("graphs", [])
    nodes: Counter[str] = Counter()
    regions: Counter[str] = Counter()
    ops: dict[str, Counter[str]] = {}
    for graph in graphs:
        for region in graph["regions"]:
            regions[region["backend"]] += 1
            nodes[region["backend"]] += len(region["nodes"])
            ops.setdefault(region["backend"], Counter()).update(region["ops"])
    events = Counter(event["kind"] for event in report.get("events", []))
    return {
        "graphs": len(graphs),
        "graph_nodes": sum(graph["nodes"] for graph in graphs),
        "nodes": dict(nodes),
        "regions": dict(regions),
        "ops": {backend: dict(counts) for backend, counts in ops.items()},
        "refused": _refused(graphs),
        "estimated_s": _sum_or_none(graph["estimated_s"] for graph in graphs),
        "single_backend_s": _summed_estimates(graphs),
        "optimal": all(graph["optimal"] for graph in graphs),
        "events": dict(events),
        "challengers": _challengers(graphs),
        "event_details": [_describe(event) for event in report.get("events", [])][:20],
    }


def _challengers(graphs: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """What became of other plans in the calls; ``out`` are those that could not be run."""
    happened = (item for graph in graphs if graph.get("selection") for item in graph["selection"]["happened"])
    return dict(Counter(item["change"] for item in happened))


def is_loop(op: str) -> bool:
    """Whether an operator computes element by element: what a code generator should take."""
    return not op.startswith("higher_order") and op_class_of(op) not in LIBRARY_CLASSES


def _refused(graphs: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """For each backend, refused loops: how often each operator was refused for each reason."""
    refused: dict[str, Counter[str]] = {}
    for refusal in (item for graph in graphs for item in graph["refusals"]):
        if is_loop(refusal["op"]):
            text = f"{refusal['op']}: {refusal['code']}: {refusal['detail']}"[:200]
            refused.setdefault(refusal["backend"], Counter())[text] += 1
    return {backend: dict(counts.most_common(12)) for backend, counts in refused.items()}


def _summed_estimates(graphs: list[Mapping[str, Any]]) -> dict[str, float]:
    names = sorted({name for graph in graphs for name in graph["single_backend_s"]})
    sums = {name: _sum_or_none(graph["single_backend_s"].get(name) for graph in graphs) for name in names}
    return {name: seconds for name, seconds in sums.items() if seconds is not None}


def _sum_or_none(values: Iterable[float | None]) -> float | None:
    """The sum, or ``None`` if one of the values is not known."""
    known = list(values)
    return None if any(value is None for value in known) else sum(value for value in known if value is not None)


def _describe(event: Mapping[str, Any]) -> str:
    place = " ".join(str(event.get(key) or "") for key in ("graph", "region", "backend")).split()
    return f"{event['kind']} {'/'.join(place)}: {event.get('detail', '')}"[:400]
