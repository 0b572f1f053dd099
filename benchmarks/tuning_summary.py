"""What tuning again and again came to: how often the same placement, whether others are as fast, first against second.

Place: between ``tuning`` and what is printed. Input: what ``tuning.run`` returns. Output: one JSON value, and tables.
Units: seconds; ratios above one say how many times faster than the most frequent placement.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mixbackend.benchmarks.one_model.timing import Ratio, Timing, speedup
from mixbackend.benchmarks.peers.comparing import noise_of
from mixbackend.benchmarks.peers.placement import MOST_NOISE

SCHEMA = 1

LEAST_SAME = 0.9
MOST_SECOND = 0.1
"""Goals: share of the tries with the same placement; the second run's time over the first's."""


def summarise(found: Sequence[Mapping[str, Any]], tries: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that is told, as one JSON value."""
    cases = [_case(item, tries) for item in found]
    return {"schema": SCHEMA, "settings": dict(settings), "cases": cases, "summary": _summary(cases)}


def _case(item: Mapping[str, Any], tries: int) -> dict[str, Any]:
    records = item["tries"]
    right = [record for record in records if record["status"] == "pass"]
    counts = Counter(record["placement"] for record in right if record["placement"])
    shares = [record["second_s"] / record["first_s"] for record in right]
    same = counts.most_common(1)[0][1] if counts else 0
    complete = len(records) == tries and not item["trouble"]
    return {
        **item["case"],
        "complete": complete,
        "trouble": item["trouble"],
        "made": len(records),
        "same": same,
        "seconds_agree": sum(bool(record["second_agrees"]) for record in right),
        "first_s": _spread([record["first_s"] for record in right]),
        "second_s": _spread([record["second_s"] for record in right]),
        "second_over_first": _spread(shares),
        "plans": _plans(counts, item["plans"], right),
        "tries": [dict(record) for record in records],
        "goals": _goals(same, shares, tries) if complete else {"same": None, "second": None},
    }


def _goals(same: int, shares: Sequence[float], tries: int) -> dict[str, bool]:
    return {
        "same": same >= math.ceil(LEAST_SAME * tries),
        "second": bool(shares) and statistics.median(shares) < MOST_SECOND,
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def _plans(
    counts: Counter[str], compared: Sequence[Mapping[str, Any]] | None, records: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Every placement, most frequent first, against that one."""
    rounds = {plan["placement"]: tuple(plan["rounds_s"]) for plan in compared or ()}
    rows: list[dict[str, Any]] = []
    for name, count in counts.most_common():
        chosen = next(record["chosen"] for record in records if record["placement"] == name)
        timing = Timing(name, "pass", rounds_s=rounds.get(name, ()))
        first = Timing("", "pass", rounds_s=rounds.get(rows[0]["placement"], ())) if rows else timing
        ratio = speedup(first, timing) if rows else None
        noise = noise_of(ratio, len(timing.rounds_s)) if ratio is not None else None
        rows.append(
            {
                "placement": name,
                "chosen": chosen,
                "count": count,
                "median_s": timing.median_s if timing.rounds_s else None,
                "over_most_frequent": None if ratio is None else ratio.median,
                "noise": noise,
                "within_noise": _within(ratio, noise),
            }
        )
    return rows


def _within(ratio: Ratio | None, noise: float | None) -> bool | None:
    """Whether a placement is as fast as another; ``None`` where rounds are too few or too noisy to say."""
    if ratio is None or noise is None or noise > MOST_NOISE:
        return None
    return abs(ratio.median - 1.0) <= noise


def _summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    complete = [case for case in cases if case["complete"]]
    others = [plan for case in cases for plan in case["plans"][1:]]
    differences = [abs(plan["over_most_frequent"] - 1.0) for plan in others if plan["over_most_frequent"] is not None]
    tries = sum(case["made"] for case in complete)
    shares = [case["second_over_first"]["median"] for case in complete if case["second_over_first"]]
    return {
        "cases": len(cases),
        "complete": len(complete),
        "tries": tries,
        "same_share": sum(case["same"] for case in complete) / tries if tries else None,
        "missed_same": [case["model"] for case in complete if not case["goals"]["same"]],
        "missed_second": [case["model"] for case in complete if not case["goals"]["second"]],
        "second_over_first": _spread(shares),
        "other_plans": len(others),
        "other_plans_within_noise": sum(plan["within_noise"] is True for plan in others),
        "other_plans_too_noisy": sum(plan["within_noise"] is None for plan in others),
        "largest_difference": max(differences) if differences else None,
    }


def print_tuning(value: Mapping[str, Any], console: Console) -> None:
    """The value for people."""
    table = Table(title="tuning again and again", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("model", "phase", "same", "plans", "first s", "second s", "second / first", "others, ms"):
        table.add_column(column, overflow="fold")
    for case in value["cases"]:
        same = f"{case['same']} of {case['made']}"
        seconds = (_seconds(case[key]) for key in ("first_s", "second_s", "second_over_first"))
        table.add_row(case["model"], case["phase"], same, str(len(case["plans"])), *seconds, _others(case["plans"]))
    console.print(table)
    for case in value["cases"]:
        for record in case["tries"]:
            if record["status"] != "pass":
                console.print(f"{case['model']}, try {record['try'] + 1}: {record['status']}: {record['detail'][:300]}")
        if case["trouble"]:
            console.print(f"{case['model']}: {case['trouble'][:300]}")
    _print_summary(value["summary"], console)


def _seconds(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['median']:.3g} ({spread['least']:.3g}..{spread['most']:.3g})"


def _others(plans: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(map(_plan, plans)) if len(plans) > 1 else "-"


def _plan(plan: Mapping[str, Any]) -> str:
    text = f"{plan['count']}x {', '.join(plan['chosen'])}"
    if plan["median_s"] is not None:
        text += f" {plan['median_s'] * 1e3:.3g}"
    if plan["over_most_frequent"] is not None:
        noise = "?" if plan["noise"] is None else f"{plan['noise']:.1%}"
        text += f" ({plan['over_most_frequent']:.3f} ±{noise})"
    return text


def _print_summary(summary: Mapping[str, Any], console: Console) -> None:
    if not summary["complete"]:
        console.print("no model has all its tries yet; run the same command again")
        return
    console.print(
        f"{summary['complete']} of {summary['cases']} models with all their tries: {summary['same_share']:.0%} of "
        f"{summary['tries']} tries agree; below {LEAST_SAME:.0%}: {', '.join(summary['missed_same']) or 'none'}"
    )
    if summary["other_plans"]:
        most = summary["largest_difference"]
        console.print(
            f"other placements: {summary['other_plans']}, as fast within noise: {summary['other_plans_within_noise']}, "
            f"too noisy or not timed: {summary['other_plans_too_noisy']}"
            + ("" if most is None else f"; the largest difference is {most:.1%}")
        )
    if summary["second_over_first"]:
        console.print(
            f"second run over first: {summary['second_over_first']['median']:.1%} "
            f"(most {summary['second_over_first']['most']:.1%}, medians of models); from {MOST_SECOND:.0%} on: "
            f"{', '.join(summary['missed_second']) or 'none'}"
        )
