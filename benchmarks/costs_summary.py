"""What estimates are worth: rank correlation and errors of estimated against measured seconds.

Place: between ``costs`` and what is printed. Input: records of ``costs.measure``. Output: one JSON value, and tables.
Figures, for each kind of costs, over all regions and by backend:
  ``rank_correlation``: Spearman's, ties with their mean rank. ``median_error``: median of |estimated - measured| over
  measured. ``median_ratio``: median of estimated over measured, above one where costs are overestimated.
  ``time_error``: sum of |estimated - measured| over the sum of measured: large regions count more.
  ``within_twice``: share of regions with an estimate that is off by less than a factor of two.
``both`` compares both kinds of costs on those regions alone that were planned with either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from mixbackend.benchmarks.costs import COSTS

SCHEMA = 1

Region = Mapping[str, Any]

_LEAST_FOR_RANKS = 3
_SHOWN = 12


def summarise(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that is told, as one JSON value."""
    regions = {kind: _regions(records, kind) for kind in COSTS}
    shared = {_identity(item) for item in regions[COSTS[0]]} & {_identity(item) for item in regions[COSTS[1]]}
    both = {kind: [item for item in items if _identity(item) in shared] for kind, items in regions.items()}
    return {
        "schema": SCHEMA,
        "settings": dict(settings),
        "quality": {kind: _by_backend(items) for kind, items in regions.items()},
        "both": {kind: _by_backend(items) for kind, items in both.items()},
        "cores_of_others": _others(records),
        "problems": [
            {key: record.get(key, "") for key in ("model", "phase", "peer", "costs", "status", "detail")}
            for record in records
            if record["status"] != "pass"
        ],
        "regions": regions,
    }


def _others(records: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Cores that other programs used while regions were timed; figures taken beside much of that mean little."""
    cores = [record["cores_of_others"] for record in records if record["status"] == "pass"]
    return {"median": float(np.median(cores)), "most": max(cores)} if cores else None


def _regions(records: Sequence[Mapping[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [
        {"model": record["model"], "peer": record["peer"], **region}
        for record in records
        if record["status"] == "pass" and record["costs"] == kind
        for region in record["regions"]
    ]


def _identity(region: Region) -> tuple[str, ...]:
    return region["model"], region["peer"], region["backend"], region["content"]


def _by_backend(regions: Sequence[Region]) -> dict[str, Any]:
    names = sorted({region["backend"] for region in regions})
    each = {name: quality([item for item in regions if item["backend"] == name]) for name in names}
    return {"all": quality(regions), "backends": each}


def quality(regions: Sequence[Region]) -> dict[str, Any]:
    """The figures of the module's docstring for some regions; ``None`` where there are too few."""
    estimated = np.array([region["estimated_s"] for region in regions], dtype=float)
    measured = np.array([region["measured_s"] for region in regions], dtype=float)
    figures: dict[str, Any] = {"regions": len(regions), "rank_correlation": rank_correlation(estimated, measured)}
    if not len(regions):
        return {**figures, **dict.fromkeys(("median_error", "median_ratio", "time_error", "within_twice"))}
    ratio = estimated / measured
    return {
        **figures,
        "median_error": float(np.median(np.abs(ratio - 1.0))),
        "median_ratio": float(np.median(ratio)),
        "time_error": float(np.abs(estimated - measured).sum() / measured.sum()),
        "within_twice": float(np.mean((ratio > 0.5) & (ratio < 2.0))),
    }


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Spearman's; ``None`` for fewer than three values, or where all of one side are equal."""
    if len(first) < _LEAST_FOR_RANKS:
        return None
    ranks = ranked(first), ranked(second)
    if any(np.ptp(values) == 0.0 for values in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def ranked(values: np.ndarray) -> np.ndarray:
    """Ranks from one on; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[place]


def print_costs(value: Mapping[str, Any], console: Console) -> None:
    """The value for people."""
    for key, title in (("quality", "all regions"), ("both", "regions that were planned with either costs")):
        console.print(_table(f"estimated against measured seconds, {title}", value[key]))
    console.print(_worst(value["regions"][COSTS[-1]]))
    others = value["cores_of_others"]
    if others is not None:
        console.print(f"cores that others used meanwhile: {others['median']:.2f}, at most {others['most']:.2f}")
    for problem in value["problems"]:
        detail = str(problem["detail"]).replace("\n", " ")[:300]
        name = f"{problem['model']} {problem['phase']}, {problem['peer']}, {problem['costs']}"
        console.print(f"{name}: {problem['status']}: {detail}")


def _table(title: str, figures: Mapping[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("backend", "costs", "regions", "rank correlation", "median error", "estimated / measured",
                   "error in time", "within a factor of two"):  # fmt: skip
        table.add_column(column, overflow="fold")
    names = ["all", *sorted({name for kind in COSTS for name in figures[kind]["backends"]})]
    for name in names:
        for kind in COSTS:
            row = figures[kind]["all"] if name == "all" else figures[kind]["backends"].get(name)
            if row is not None:
                table.add_row(name, kind, str(row["regions"]), *_cells(row))
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    formats = {
        "rank_correlation": ".3f",
        "median_error": ".0%",
        "median_ratio": ".2f",
        "time_error": ".0%",
        "within_twice": ".0%",
    }
    return ["-" if row[name] is None else format(row[name], form) for name, form in formats.items()]


def _worst(regions: Sequence[Region]) -> Table:
    """Regions with the estimates that are farthest off in seconds."""
    title = "farthest off, calibrated"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("model", "peer", "region", "backend", "estimated ms", "measured ms", "ops"):
        table.add_column(column, overflow="fold")
    for region in sorted(regions, key=lambda item: -abs(item["estimated_s"] - item["measured_s"]))[:_SHOWN]:
        seconds = (f"{region[key] * 1e3:.3g}" for key in ("estimated_s", "measured_s"))
        name = f"{region['phase']} {region['region']}"
        table.add_row(region["model"], region["peer"], name, region["backend"], *seconds, region["ops"])
    return table
