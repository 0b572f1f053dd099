"""Rounds of peers against one another: which is faster, by how much, and how sure that is.

Place: below ``summary`` and ``placement``. Input: records of ``runner``. Output: rounds, ratios, noise.
Ratios are taken round by round. Peers of different runs are compared through eager, which took part in both: each round
is divided by eager's. Units: seconds; a ratio above one says how many times faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mixbackend.benchmarks.one_model.timing import Ratio, Timing, speedup

Record = Mapping[str, Any]

_QUARTILES_OF_NORMAL = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
_MEDIAN_OVER_MEAN = 1.2533
"""How much farther a median is from the truth than a mean, in standard errors."""
_STANDARD_ERRORS = 2.0
_LEAST_ROUNDS = 4
"""Fewer say nothing about noise."""


def comparable_rounds(records: Mapping[str, Record], names: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Rounds of some peers: seconds if all were timed in one run, else seconds over eager's in the same round."""
    present = [name for name in names if name in records]
    if len({records[name].get("turns") for name in present}) <= 1:
        return {name: tuple(records[name]["rounds_s"]) for name in present}
    relative = {
        name: tuple(own / eager for own, eager in zip(record["rounds_s"], record["anchor_rounds_s"], strict=False))
        for name in present
        if (record := records[name])
    }
    return {name: rounds for name, rounds in relative.items() if rounds}


def best_of(records: Mapping[str, Record], names: Sequence[str]) -> str | None:
    """The fastest of some peers, by the median of its rounds."""
    medians = {name: statistics.median(rounds) for name, rounds in comparable_rounds(records, names).items()}
    return min(medians, key=lambda name: medians[name]) if medians else None


def ratio_over(records: Mapping[str, Record], ours: str, other: str) -> tuple[Ratio, float | None] | None:
    """How many times faster one peer is than another, and the noise of that; ``None`` without common rounds."""
    rounds = comparable_rounds(records, (other, ours))
    slow, fast = (Timing(name, "pass", rounds_s=rounds.get(name, ())) for name in (other, ours))
    ratio = speedup(slow, fast)
    return None if ratio is None else (ratio, noise_of(ratio, min(len(slow.rounds_s), len(fast.rounds_s))))


def noise_of(ratio: Ratio, rounds: int) -> float | None:
    """Two standard errors of a median of rounds, from their quartiles, relative to it; ``None`` for too few rounds."""
    if rounds < _LEAST_ROUNDS:
        return None
    deviation = (ratio.high - ratio.low) / _QUARTILES_OF_NORMAL
    return _STANDARD_ERRORS * _MEDIAN_OVER_MEAN * deviation / math.sqrt(rounds) / ratio.median


def apart(records: Mapping[str, Record], *names: str) -> bool:
    """Whether some peers were timed in different runs."""
    return len({records[name].get("turns") for name in names}) > 1


def geometric_mean(values: Sequence[float]) -> float | None:
    """``None`` of nothing."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else None
