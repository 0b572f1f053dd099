"""Summaries of the suite's records: as plain data for ``--json``, as tables for people.

Place: the end of ``mixbackend bench suite``. Input: records of ``suite`` or ``speed``. Pure but for printing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mixbackend.benchmarks.one_model.placements import is_loop
from mixbackend.benchmarks.one_model.protocol import NOT_JUDGED
from mixbackend.benchmarks.results import Record
from mixbackend.benchmarks.runner import REFERENCE_BACKEND
from mixbackend.benchmarks.speed import THE_MIXTURE


def summarise_accuracy(records: Sequence[Record]) -> dict[str, Any]:
    """Pass rate, failures with their reason, graph nodes and regions per backend, first-call seconds."""
    judged = [record for record in records if record["status"] not in NOT_JUDGED]
    passed = [record for record in judged if record["status"] == "pass"]
    failed = [record for record in judged if record["status"] != "pass"]
    shared = [record for record in failed if (record.get(REFERENCE_BACKEND) or {}).get("status", "pass") != "pass"]
    first = [record["first_call_s"] for record in records if record.get("first_call_s") is not None]
    return {
        "cases": len(records),
        "judged": len(judged),
        "passed": len(passed),
        "pass_rate": len(passed) / len(judged) if judged else None,
        f"failed_as_{REFERENCE_BACKEND}": len(shared),
        "statuses": dict(Counter(record["status"] for record in records)),
        "graphs": sum(_placement(record).get("graphs", 0) for record in records),
        "nodes": _added(_placement(record).get("nodes", {}) for record in records),
        "regions": _added(_placement(record).get("regions", {}) for record in records),
        "loops": _loops(records),
        "events": _added(_placement(record).get("events", {}) for record in records),
        "not_optimal": sum(not _placement(record).get("optimal", True) for record in records),
        "first_call_s": {"median": statistics.median(first), "total": sum(first)} if first else None,
        "failures": [_failure(record) for record in records if record["status"] != "pass"],
    }


def summarise_speed(records: Sequence[Record]) -> dict[str, Any]:
    """Outcomes of the placements, and each peer's geometric mean over eager."""
    ratios: dict[str, list[float]] = {}
    for record in records:
        for name, ratio in record["over_eager"].items():
            if ratio is not None:
                ratios.setdefault(name, []).append(ratio["median"])
    return {
        "cases": len(records),
        "outcomes": dict(Counter(record["verdict"]["outcome"] for record in records)),
        "over_eager": {
            name: {"geometric_mean": math.exp(statistics.fmean(map(math.log, values))), "cases": len(values)}
            for name, values in ratios.items()
        },
        "mistakes": [
            {"model": record["model"], "phase": record["phase"], **record["verdict"], "planner": record["planner"]}
            for record in records
            if record["verdict"]["outcome"] == "planner_wrong"
        ],
        "failures": [_failure(record) for record in records if record["status"] != "pass"],
    }


def print_accuracy(records: Sequence[Record], console: Console) -> None:
    """Totals by phase, nodes per backend, then every failure."""
    phases = sorted({record["phase"] for record in records})
    groups = [(phase, [record for record in records if record["phase"] == phase]) for phase in phases]
    groups += [("all", list(records))] if len(groups) > 1 else []
    columns = [
        "cases",
        "passed",
        "rate",
        f"failed, {REFERENCE_BACKEND} too",
        "not judged",
        "graphs",
        "median first call",
    ]
    totals = _table("accuracy", ["phase", *columns])
    for phase, group in groups:
        summary = summarise_accuracy(group)
        first = summary["first_call_s"]
        totals.add_row(
            phase,
            str(summary["cases"]),
            str(summary["passed"]),
            "-" if summary["pass_rate"] is None else f"{summary['pass_rate']:.1%}",
            str(summary[f"failed_as_{REFERENCE_BACKEND}"]),
            str(summary["cases"] - summary["judged"]),
            str(summary["graphs"]),
            "-" if first is None else f"{first['median']:.1f} s",
        )
    console.print(totals)
    _print_placements(summarise_accuracy(records), console)
    _print_failures(summarise_accuracy(records)["failures"], console)


def print_speed(records: Sequence[Record], console: Console) -> None:
    """One row per case: milliseconds of every peer, and what became of the placement."""
    peers = list(dict.fromkeys(name for record in records for name in record["peers"]))
    table = _table(
        "milliseconds per call, median of the rounds, half the quartile distance", ["model", "phase", *peers]
    )
    for column in ("mixture over eager", "outcome"):
        table.add_column(column)
    for record in records:
        times = [_milliseconds(record["peers"].get(name)) for name in peers]
        ratio = record["over_eager"].get(THE_MIXTURE)
        gain = "-" if ratio is None else f"{ratio['median']:.2f}x"
        table.add_row(record["model"], record["phase"], *times, gain, record["verdict"]["outcome"])
    console.print(table)
    summary = summarise_speed(records)
    for name, figure in summary["over_eager"].items():
        console.print(f"{name}: {figure['geometric_mean']:.3f}x eager, geometric mean of {figure['cases']}")
    for outcome, count in sorted(summary["outcomes"].items()):
        console.print(f"{outcome}: {count}")
    _print_failures(summary["failures"], console)


def _print_placements(summary: dict[str, Any], console: Console) -> None:
    if not summary["nodes"]:
        return
    total = sum(summary["nodes"].values())
    table = _table("placement", ["backend", "graph nodes", "share", "regions"])
    for name, count in sorted(summary["nodes"].items(), key=lambda item: -item[1]):
        table.add_row(name, str(count), f"{count / total:.1%}", str(summary["regions"].get(name, 0)))
    console.print(table)
    for name, counts in sorted(summary["loops"].items(), key=lambda item: -sum(item[1].values())):
        share = sum(counts.values()) / max(sum(sum(other.values()) for other in summary["loops"].values()), 1)
        most = ", ".join(f"{op} {count}" for op, count in list(counts.items())[:24])
        console.print(f"loops over elements on {name}: {share:.2%} ({most})")
    if summary["events"]:
        console.print("events: " + ", ".join(f"{kind} {count}" for kind, count in sorted(summary["events"].items())))


def _print_failures(failures: Sequence[dict[str, Any]], console: Console) -> None:
    if not failures:
        return
    table = _table("did not pass", ["model", "phase", "status", REFERENCE_BACKEND, "detail"])
    for failure in failures:
        row = [failure[key] for key in ("model", "phase", "status", REFERENCE_BACKEND)]
        table.add_row(*row, failure["detail"].replace("\n", " ")[:160])
    console.print(table)


def _loops(records: Sequence[Record]) -> dict[str, dict[str, int]]:
    """For each backend, its nodes that are loops over elements, by operator, most frequent first."""
    found: dict[str, Counter[str]] = {}
    for record in records:
        for backend, counts in _placement(record).get("ops", {}).items():
            found.setdefault(backend, Counter()).update({op: n for op, n in counts.items() if is_loop(op)})
    return {backend: dict(counts.most_common()) for backend, counts in found.items()}


def _failure(record: Record) -> dict[str, Any]:
    reference = record.get(REFERENCE_BACKEND) or {}
    return {
        **{key: record[key] for key in ("model", "phase", "status")},
        "detail": record.get("detail", ""),
        REFERENCE_BACKEND: reference.get("status", ""),
    }


def _placement(record: Record) -> dict[str, Any]:
    return record.get("placement") or {}


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def _milliseconds(timing: dict[str, Any] | None) -> str:
    if timing is None:
        return "-"
    if timing["median_s"] is None:
        return str(timing["status"])
    spread = timing["spread"]
    return f"{timing['median_s'] * 1e3:.3g}" + ("" if spread is None else f" ±{spread:.0%}")


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
