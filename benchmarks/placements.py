"""What a report says about one model, added up over its graphs.

Place: the worker condenses ``backend.report().to_dict()`` with it; the suite's tables are made of it.
Input and output: plain data. Units: seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


def summarise(report: Mapping[str, Any]) -> dict[str, Any]:
    """Nodes and regions per backend, estimates and events of all graphs of a report.

    ``single_backend_s`` holds only backends that have an estimate for every graph: a sum over some of the graphs
    would look faster than it is.
    """
    graphs = report.get("graphs", [])
    nodes: Counter[str] = Counter()
    regions: Counter[str] = Counter()
    for graph in graphs:
        for region in graph["regions"]:
            regions[region["backend"]] += 1
            nodes[region["backend"]] += len(region["nodes"])
    events = Counter(event["kind"] for event in report.get("events", []))
    return {
        "graphs": len(graphs),
        "graph_nodes": sum(graph["nodes"] for graph in graphs),
        "nodes": dict(nodes),
        "regions": dict(regions),
        "estimated_s": sum(graph["estimated_s"] for graph in graphs),
        "single_backend_s": _summed_estimates(graphs),
        "optimal": all(graph["optimal"] for graph in graphs),
        "events": dict(events),
        "event_details": [_describe(event) for event in report.get("events", [])][:20],
    }


def _summed_estimates(graphs: list[Mapping[str, Any]]) -> dict[str, float]:
    if not graphs:
        return {}
    common = set.intersection(*(set(graph["single_backend_s"]) for graph in graphs))
    return {name: sum(graph["single_backend_s"][name] for graph in graphs) for name in sorted(common)}


def _describe(event: Mapping[str, Any]) -> str:
    place = " ".join(str(event.get(key) or "") for key in ("graph", "region", "backend")).split()
    return f"{event['kind']} {'/'.join(place)}: {event.get('detail', '')}"[:400]
