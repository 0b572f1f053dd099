"""What the records come to: ratios, winners, geometric means, distance to the machine's limits, goals met or missed.

Place: between ``runner`` and what is printed. Input: records and the limits of the machine. Output: plain data.
How peers are compared is said in ``comparing``; a ratio of peers that were timed in different runs says ``runs_apart``.
Only peers with right results can win.
Units: seconds; a ratio above one says how many times faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mixbackend.benchmarks.one_model.timing import Timing
from mixbackend.benchmarks.peers.catalogue import (
    INDUCTORS,
    MIXTURE,
    MIXTURES,
    RIVALS,
    TUNED,
    TUNED_WITHOUT_OPENVINO,
    WITHOUT_OPENVINO,
    is_ours,
)
from mixbackend.benchmarks.peers.comparing import Record, apart, best_of, geometric_mean, ratio_over
from mixbackend.benchmarks.peers.placement import over_singles, summarise_singles
from mixbackend.benchmarks.peers.request import OWN_BATCH

SCHEMA = 1

_CASE_KEYS = ("model", "batch", "phase", "dtype")
_GOALS: Mapping[tuple[str, str], Sequence[tuple[str, str, float, float | None]]] = {
    # ours, against the best of, geometric mean, least
    ("inference", "float32"): (
        (MIXTURE, "rivals", 1.0, 0.9),
        (MIXTURE, "inductor", 1.8, None),
        (WITHOUT_OPENVINO, "rivals", 0.95, None),
        (TUNED, "rivals", 1.0, 0.9),
        (TUNED, "inductor", 1.8, None),
        (TUNED_WITHOUT_OPENVINO, "rivals", 0.95, None),
    ),
    ("training", "float32"): ((MIXTURE, "inductor", 1.5, 1.0), (TUNED, "inductor", 1.5, 1.0)),
}


def summarise(
    records: Sequence[Record], machine: Mapping[str, Mapping[str, float]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that is told, as one JSON value.

    Args:
        records: of ``runner.run``.
        machine: limits by dtype, ``flops_per_s`` and ``bytes_per_s``.
        settings: how the records were made.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in _CASE_KEYS), []).append(record)
    cases = [_case(dict(zip(_CASE_KEYS, key, strict=True)), group, machine) for key, group in groups.items()]
    return {
        "schema": SCHEMA,
        "settings": dict(settings),
        "machine": {dtype: dict(limits) for dtype, limits in machine.items()},
        "cases": cases,
        "summary": _summary(cases),
        "singles": _singles(cases),
    }


def _case(
    case: dict[str, Any], records: Sequence[Record], machine: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    by_peer = {record["peer"]: record for record in records}
    right = {name: record for name, record in by_peer.items() if record["status"] == "pass" and record.get("rounds_s")}
    work = next((record["work"] for record in records if record.get("work")), None)
    limits = _limits(work, machine.get(case["dtype"]))
    over = {
        mixture: {
            "rivals": _over_best(right, mixture, RIVALS),
            "inductor": _over_best(right, mixture, INDUCTORS),
            "eager": _over_best(right, mixture, ("eager",)),
        }
        for mixture in MIXTURES
        if mixture in right
    }
    return {
        **case,
        "winner": best_of(right, tuple(right)),
        "best_rival": best_of(right, RIVALS),
        "over": over,
        "over_singles": over_singles(right),
        "limits": limits,
        "peers": {name: _peer(record, limits) for name, record in by_peer.items()},
        "parts": {name: _parts(record) for name, record in right.items() if record.get("parts")},
    }


def _parts(record: Record) -> dict[str, Any]:
    """The parts, and the seconds of a call that no region accounts for."""
    regions_s = record["parts"].get("measured_s")
    beyond = None if regions_s is None else statistics.median(record["rounds_s"]) - regions_s
    return {**record["parts"], "beyond_regions_s": beyond}


def _limits(work: Mapping[str, int] | None, machine: Mapping[str, float] | None) -> dict[str, Any] | None:
    if work is None or not machine:
        return None
    compute_s = work["flops"] / machine["flops_per_s"]
    bandwidth_s = work["bytes"] / machine["bytes_per_s"]
    return {**work, "compute_s": compute_s, "bandwidth_s": bandwidth_s, "least_s": max(compute_s, bandwidth_s)}


def _peer(record: Record, limits: Mapping[str, float] | None) -> dict[str, Any]:
    timing = Timing(record["peer"], record["status"], rounds_s=tuple(record.get("rounds_s") or ()))
    known = timing.to_dict()
    return {
        "status": record["status"],
        "detail": record.get("detail", ""),
        "median_s": known["median_s"],
        "spread": known["spread"],
        "rounds_s": known["rounds_s"],
        "share_of_limit": limits["least_s"] / known["median_s"] if limits and known["median_s"] else None,
        "first_call_s": record.get("first_call_s"),
        "first_call_warm": first_call_warm(record),
        "new_kernels": record.get("new_kernels"),
        "warm_up": record.get("warm_up"),
        "peak_memory_bytes": record.get("peak_memory_bytes"),
        "cores_of_others": record.get("cores_of_others"),
    }


def first_call_warm(record: Record) -> bool | None:
    """Whether the first call found its code in caches; ``None`` for peers that keep none."""
    kernels = record.get("new_kernels")
    if kernels is None or not (is_ours(record["peer"]) or record["peer"] in INDUCTORS):
        return None
    parts = record.get("parts") or {}
    return kernels == 0 and parts.get("regions_from_cache") == parts.get("regions")


def _over_best(records: Mapping[str, Record], ours: str, names: Sequence[str]) -> dict[str, Any] | None:
    best = best_of(records, names)
    found = None if best is None else ratio_over(records, ours, best)
    if best is None or found is None:
        return None
    ratio, noise = found
    facts = {"peer": best, "median": ratio.median, "low": ratio.low, "high": ratio.high, "noise": noise}
    return {**facts, "runs_apart": apart(records, best, ours)}


def _summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    groups = list(dict.fromkeys((case["phase"], case["dtype"]) for case in cases))
    return {f"{phase} {dtype}": _group(cases, phase, dtype) for phase, dtype in groups}


def _group(cases: Sequence[Mapping[str, Any]], phase: str, dtype: str) -> dict[str, Any]:
    group = [case for case in cases if (case["phase"], case["dtype"]) == (phase, dtype)]
    means = {
        mixture: {
            against: figure for against in ("rivals", "inductor", "eager") if (figure := _mean(group, mixture, against))
        }
        for mixture in MIXTURES
    }
    goals = [_goal(means, *goal) for goal in _GOALS.get((phase, dtype), ())]
    wins = [case["winner"] for case in group]
    return {
        "cases": len(group),
        "models": len({case["model"] for case in group}),
        "geometric_means": {name: figures for name, figures in means.items() if figures},
        "wins": {name: wins.count(name) for name in dict.fromkeys(wins) if name is not None},
        "goals": goals,
        "singles": _singles(group),
        "problems": [_problem(case, name, peer) for case in group for name, peer in case["peers"].items()
                     if peer["status"] not in ("pass", "refused")],
    }  # fmt: skip


def case_name(case: Mapping[str, Any]) -> str:
    """Model and batch of a case, in words."""
    return f"{case['model']}" + ("" if case["batch"] == OWN_BATCH else f" batch {case['batch']}")


def _singles(cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    phases = len({case["phase"] for case in cases}) > 1

    def name(case: Mapping[str, Any]) -> str:
        return case_name(case) + (f" {case['phase']}" if phases else "")

    return summarise_singles([(name(case), case["over_singles"], tuple(case["peers"])) for case in cases])


def _mean(group: Sequence[Mapping[str, Any]], mixture: str, against: str) -> dict[str, Any] | None:
    """Geometric mean over the cases that have both, the least of them, and which case that is."""
    ratios = {
        case_name(case): ratio["median"]
        for case in group
        if (ratio := case["over"].get(mixture, {}).get(against)) is not None
    }
    if not ratios:
        return None
    least = min(ratios, key=lambda name: ratios[name])
    return {
        "geometric_mean": geometric_mean(list(ratios.values())),
        "least": ratios[least],
        "least_at": least,
        "cases": len(ratios),
    }


def _goal(
    means: Mapping[str, Mapping[str, Mapping[str, Any]]], ours: str, against: str, mean: float, least: float | None
) -> dict[str, Any]:
    """A goal beside what was reached: ``missing`` is the factor by which the worse of its two figures falls short."""
    reached = means.get(ours, {}).get(against)
    goal = {"ours": ours, "against": against, "geometric_mean": mean, "least": least}
    if reached is None:
        return {**goal, "met": None, "missing": None, "reached": None}
    short = max(mean / reached["geometric_mean"], (least or 0.0) / reached["least"])
    return {**goal, "met": short <= 1.0, "missing": max(short, 1.0), "reached": dict(reached)}


def _problem(case: Mapping[str, Any], name: str, peer: Mapping[str, Any]) -> dict[str, Any]:
    return {**{key: case[key] for key in _CASE_KEYS}, "peer": name, "status": peer["status"], "detail": peer["detail"]}
