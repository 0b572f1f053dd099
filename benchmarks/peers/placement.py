"""The mixture against every single backend and eager: is it ever slower, and what does it gain.

Place: beside ``summary``, which adds what this makes. Input: the right records of a case; then the rows of all cases.
Output: plain data. A difference counts only if it is beyond noise, which is stated beside every ratio: two standard
errors of the median over the rounds. What two processes with the same placement differ by is stated too: no number of
rounds makes it smaller.
Units: a ratio above one says how many times faster; shares of time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mixbackend.benchmarks.peers.catalogue import EAGER, MIXTURE, SINGLE, TUNED
from mixbackend.benchmarks.peers.comparing import Record, apart, best_of, geometric_mean, ratio_over

MOST_NOISE = 0.03
"""A ratio that is less certain says nothing about whether the mixture is slower."""
LIMITS: Mapping[str, tuple[float, float]] = {MIXTURE: (0.10, 1.0), TUNED: (0.03, 0.0)}
"""By mixture: how much slower than the best single it may be anywhere, and its least geometric mean gain."""

Row = Mapping[str, Any]


def over_singles(right: Mapping[str, Record]) -> dict[str, dict[str, Any]]:
    """For each mixture of a case, its ratio over the best of eager and the single backends.

    Args:
        right: records of peers with right results, by name.
    """
    singles = [name for name in right if name == EAGER or name.startswith(SINGLE)]
    if not any(name.startswith(SINGLE) for name in singles):
        return {}
    rows = {ours: _row(right, ours, singles, limit) for ours, (limit, _) in LIMITS.items() if ours in right}
    return {ours: row for ours, row in rows.items() if row is not None}


def _row(right: Mapping[str, Record], ours: str, singles: Sequence[str], limit: float) -> dict[str, Any] | None:
    best = best_of(right, singles)
    found = None if best is None else ratio_over(right, ours, best)
    if best is None or found is None:
        return None
    ratio, noise = found
    slower = max(0.0, 1.0 / ratio.median - 1.0)
    certain = noise is not None and noise <= MOST_NOISE
    mine, other = (_placement(right[name]) for name in (ours, best))
    return {
        "best_single": best,
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "noise": noise,
        "slower_by": slower,
        "slower_beyond_noise": noise is not None and slower > noise,
        "slower_beyond_limit": noise is not None and slower > max(noise, limit),
        "too_noisy": not certain,
        "same_placement": mine == other if mine and other else None,
        "runs_apart": apart(right, best, ours),
    }


def _placement(record: Record) -> str:
    return str((record.get("parts") or {}).get("placement") or "")


def summarise_singles(cases: Sequence[tuple[str, Mapping[str, Row], Sequence[str]]]) -> dict[str, dict[str, Any]]:
    """What the rows of all cases come to, by mixture; only mixtures that were asked for.

    Args:
        cases: name of the case, its rows by mixture, and the peers that were asked for.
    """
    found = {}
    for ours, (limit, gain) in LIMITS.items():
        asked = {name: rows.get(ours) for name, rows, peers in cases if ours in peers and _has_singles(peers)}
        if asked:
            rows = {name: row for name, row in asked.items() if row is not None}
            found[ours] = _summary(rows, [name for name, row in asked.items() if row is None], limit, gain)
    return found


def _has_singles(peers: Sequence[str]) -> bool:
    return any(peer.startswith(SINGLE) for peer in peers)


def _summary(rows: Mapping[str, Row], missing: list[str], limit: float, gain: float) -> dict[str, Any]:
    def where(key: str) -> list[str]:
        return [name for name, row in rows.items() if row[key]]

    noises = [row["noise"] for row in rows.values() if row["noise"] is not None]
    same = [abs(row["ratio"] - 1.0) for row in rows.values() if row["same_placement"]]
    mean = geometric_mean([row["ratio"] for row in rows.values()])
    least = min(rows, key=lambda name: rows[name]["ratio"]) if rows else None
    summary = {
        "cases": len(rows),
        "geometric_mean": mean,
        "least": None if least is None else rows[least]["ratio"],
        "least_at": least,
        "limit": limit,
        "slower_beyond_limit": where("slower_beyond_limit"),
        "slower_beyond_noise": where("slower_beyond_noise"),
        "too_noisy": where("too_noisy"),
        "missing": missing,
        "noise": {"median": statistics.median(noises), "largest": max(noises)} if noises else None,
        "same_placement": {"cases": len(same), "median": statistics.median(same), "largest": max(same)}
        if same
        else {"cases": 0, "median": None, "largest": None},
        "least_geometric_mean": gain,
    }
    return {**summary, "met": _met(summary)}


def _met(summary: Mapping[str, Any]) -> bool | None:
    """Whether the goal is met; ``None`` if figures are missing or too noisy to say, and nothing else misses it."""
    mean = summary["geometric_mean"]
    if summary["slower_beyond_limit"] or (mean is not None and mean < summary["least_geometric_mean"]):
        return False
    return None if mean is None or summary["missing"] or summary["too_noisy"] else True
