"""What the records of the headline table say: how many cases are right, and how fast they are.

Place: between ``run``'s records and ``page`` and ``plots``. Input: records. Output: plain data, ratios by way.
Invariants: a ratio is of one case, in which the ways took turns. A mean is over the cases in which all of the compared
ways were timed and right, so equal cases for both sides; cases that are left out are counted and named. The best mode
of a side is the faster of its two, case by case, for both sides alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.benchmarks.headline.cases import SETS, Way, case_of
from mixbackend.benchmarks.peers.comparing import geometric_mean
from mixbackend.benchmarks.row_records import Part

OURS: tuple[Way, ...] = ("ours", "ours-graphs")
INDUCTOR: tuple[Way, ...] = ("inductor", "inductor-graphs")
LOSS = 0.97
"""Below this share of inductor's speed in the same mode a case is looked at."""
AMP_WEIGHT = 0.75
"""Of training, as the announcement of PyTorch 2 weighed it: the rest is float32."""


@dataclass(frozen=True, slots=True)
class Line:
    """One case.

    Attributes:
        model, family, group: the group is a key of ``SETS``.
        ms: by way, of those that were timed and are right.
        wrong: ways that failed or are wrong, with the reason.
        judged: whether eager ran, and repeated its own results.
        first_s, memory_gb: by way.
    """

    model: str
    family: str
    group: str
    ms: Mapping[str, float]
    wrong: Mapping[str, str]
    judged: bool
    reason: str
    first_s: Mapping[str, float]
    memory_gb: Mapping[str, float]

    def gain(self, ways: Iterable[str], over: Iterable[str]) -> float | None:
        """The fastest of ``over``'s time over the fastest of ``ways``; ``None`` where a side has none."""
        mine, theirs = (min((self.ms[way] for way in side if way in self.ms), default=None) for side in (ways, over))
        return theirs / mine if mine and theirs else None


def line_of(record: Part) -> Line:
    """A record as a line."""
    case = case_of(record["row"])
    group = next((name for name, kind in SETS.items() if kind == (case.phase, case.precision)), "other")
    ways: Mapping[str, Mapping[str, Any]] = record.get("ways", {})
    reason = record.get("not_judged") or record.get("failed") or ""
    repeats = bool(record.get("eager_repeats", False))
    wrong = {way: said for way, found in ways.items() if (said := _wrong(found, repeats))}
    if record.get("failed"):
        unfinished = [way for way in (*INDUCTOR, *OURS) if way not in ways]
        wrong |= dict.fromkeys(unfinished, f"its process: {record['failed']}")
    return Line(
        case.model,
        record.get("family", ""),
        group,
        {way: found["ms"] for way, found in ways.items() if "ms" in found and way not in wrong},
        wrong,
        repeats,
        reason,
        _numbers(ways, "first_s"),
        _numbers(ways, "memory_gb"),
    )


def _wrong(found: Mapping[str, Any], repeats: bool) -> str:
    if "failed" in found:
        return str(found["failed"])
    # Where eager does not repeat itself nothing is proved of others.
    return "; ".join(found.get("mismatches", ())) if repeats and found.get("verdict") == "fail_accuracy" else ""


def _numbers(ways: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, float]:
    return {way: found[key] for way, found in ways.items() if key in found}


def summarise(records: Iterable[Part]) -> dict[str, Any]:
    """Pass rates, means, losses and what is missing, by group; and the weighted number of training."""
    lines = [line_of(record) for record in records]
    groups = {name: _group([line for line in lines if line.group == name]) for name in SETS}
    return {
        "groups": {name: group for name, group in groups.items() if group["cases"]},
        "weighted_training": {side: _weighted(groups, f"{side}_over_eager") for side in ("ours_best", "inductor_best")},
    }


def _group(lines: Sequence[Line]) -> dict[str, Any]:
    judged = [line for line in lines if line.judged]
    families = sorted({line.family for line in lines if line.family})
    return {
        "cases": len(lines),
        "judged": len(judged),
        "right": {way: sum(way not in line.wrong for line in judged) for way in (*INDUCTOR, *OURS)},
        "wrong": {line.model: dict(line.wrong) for line in lines if line.wrong},
        "not_judged": {line.model: line.reason or "eager's two runs differ" for line in lines if not line.judged},
        **_speed(lines),
        "families": {family: _speed([line for line in lines if line.family == family]) for family in families},
        "losses": _losses(lines),
        "first_call_share": _median(_share(line.first_s, "ours", "inductor") for line in lines),
        "memory_share": _median(_share(line.memory_gb, "ours-graphs", "inductor-graphs") for line in lines),
    }


_COMPARED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "inductor_over_eager": (("inductor",), ("eager",)),
    "inductor_graphs_over_eager": (("inductor-graphs",), ("eager",)),
    "inductor_best_over_eager": (INDUCTOR, ("eager",)),
    "ours_over_eager": (("ours",), ("eager",)),
    "ours_graphs_over_eager": (("ours-graphs",), ("eager",)),
    "ours_best_over_eager": (OURS, ("eager",)),
    "ours_over_inductor": (("ours",), ("inductor",)),
    "ours_graphs_over_inductor_graphs": (("ours-graphs",), ("inductor-graphs",)),
    "ours_best_over_inductor_best": (OURS, INDUCTOR),
}


def _speed(lines: Sequence[Line]) -> dict[str, Any]:
    """Geometric means, over the cases in which all four compiled ways and eager have a time."""
    whole = [line for line in lines if all(way in line.ms for way in ("eager", *INDUCTOR, *OURS))]
    means = {name: _rounded(geometric_mean(_gains(whole, *sides))) for name, sides in _COMPARED.items()}
    return {"compared": len(whole), **means}


def _gains(lines: Iterable[Line], ways: Sequence[str], over: Sequence[str]) -> list[float]:
    return [gain for line in lines if (gain := line.gain(ways, over)) is not None]


def _weighted(groups: Mapping[str, Mapping[str, Any]], key: str) -> float | None:
    amp, whole = (groups[name][key] for name in ("training-amp", "training-float32"))
    return round(AMP_WEIGHT * amp + (1.0 - AMP_WEIGHT) * whole, 3) if amp and whole else None


def _losses(lines: Iterable[Line]) -> dict[str, dict[str, float]]:
    """Models below inductor in the same mode, by mode, the worst first."""
    found: dict[str, dict[str, float]] = {}
    for mine, theirs in zip(OURS, INDUCTOR, strict=True):
        gains = {line.model: gain for line in lines if (gain := line.gain((mine,), (theirs,))) and gain < LOSS}
        found[mine] = {model: round(gain, 3) for model, gain in sorted(gains.items(), key=lambda item: item[1])}
    return found


def _share(values: Mapping[str, float], mine: str, theirs: str) -> float | None:
    return values[mine] / values[theirs] if values.get(mine) and values.get(theirs) else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _rounded(statistics.median(known) if known else None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
