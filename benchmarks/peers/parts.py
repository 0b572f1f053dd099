"""Which backends won which parts of a model, and where its time goes, from a mixture's report.

Place: the peer's process condenses ``report().to_dict()`` with it; records and tables hold the result.
Input and output: plain data. Units: seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mixbackend.reporting.summary import short_modules, short_ops

_MOST_REGIONS = 8
_MOST_OPS = 12


def summarise_parts(report: Mapping[str, Any]) -> dict[str, Any]:
    """Ops and modules by backend, the regions that take longest, and how sure that is; empty without graphs.

    ``placement`` is equal for equal placements of a model, whatever was estimated; ``chosen`` is what tuning took,
    ``compared`` the milliseconds of all that it compared.
    ``measured_s`` of a region is what its first calls took. ``measured_s`` of the whole is their sum: what a call takes
    beyond it is spent between regions; regions without a time are counted.
    """
    graphs = report.get("graphs", [])
    if not graphs:
        return {}
    regions = [{**region, "phase": graph["phase"]} for graph in graphs for region in graph["regions"]]
    timed = [region for region in regions if region["measured_s"] is not None]
    slowest = sorted(timed, key=lambda region: -region["measured_s"])[:_MOST_REGIONS]
    return {
        "graphs": len(graphs),
        "placement": placement_digest(graphs),
        "chosen": [graph["tuning"]["chosen"] if graph["tuning"] else "" for graph in graphs],
        "compared": [_compared(graph["tuning"]) for graph in graphs],
        "backends": {name: _backend(regions, name) for name in sorted({region["backend"] for region in regions})},
        "profile": [_region(region) for region in slowest],
        "measured_s": sum(region["measured_s"] for region in timed),
        "regions": len(regions),
        "regions_without_time": len(regions) - len(timed),
        "regions_from_cache": sum(bool(region["cached"]) for region in regions),
        "estimated_s": _sum_or_none([graph["estimated_s"] for graph in graphs]),
        "events": dict(Counter(event["kind"] for event in report.get("events", []))),
    }


def placement_digest(graphs: Sequence[Mapping[str, Any]]) -> str:
    """Sixteen digits that say which backend runs which nodes of which graph in which layout."""
    facts = [
        [
            graph["phase"],
            graph["layout"]["chosen"],
            sorted([item["nodes"], item["backend"]] for item in graph["regions"]),
        ]
        for graph in graphs
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _compared(tuning: Mapping[str, Any] | None) -> dict[str, float | None]:
    trials = tuning["trials"] if tuning else ()
    seconds = {trial["choice"]: trial["median_s"] for trial in trials}
    return {choice: None if taken is None else round(1e3 * taken, 3) for choice, taken in seconds.items()}


def _backend(regions: list[dict[str, Any]], name: str) -> dict[str, Any]:
    own = [region for region in regions if region["backend"] == name]
    ops: Counter[str] = Counter()
    for region in own:
        ops.update(region["ops"])
    modules = list(dict.fromkeys(path for region in own for path in region["modules"]))
    return {
        "regions": len(own),
        "nodes": sum(len(region["nodes"]) for region in own),
        "measured_s": sum(region["measured_s"] or 0.0 for region in own),
        "ops": dict(ops.most_common(_MOST_OPS)),
        "modules": short_modules(modules, _MOST_OPS),
    }


def _region(region: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": region["id"],
        "phase": region["phase"],
        "backend": region["backend"],
        "measured_s": region["measured_s"],
        "estimated_s": region["estimated_s"],
        "ops": short_ops(region["ops"]),
        "modules": short_modules(region["modules"]),
    }


def _sum_or_none(values: list[float | None]) -> float | None:
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)
