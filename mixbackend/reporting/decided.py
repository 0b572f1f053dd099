"""How a graph's placement was decided, by how much, and alternatives as plain data.

Place: beneath ``records`` and ``why``. Pure functions of a graph's record.
Invariants: where plans were measured, the margin is between measured medians, and estimates are not given as a reason.
Units: seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mixbackend.contracts.plan import Refusal
from mixbackend.partitioner.portable import FIXED

if TYPE_CHECKING:
    from mixbackend.partitioner.alternatives import Alternative
    from mixbackend.reporting.records import GraphRecord, TrialRecord

DecidedBy = Literal["estimates", "measurements", "earlier plan"]


@dataclass(frozen=True, slots=True)
class Decided:
    """How a graph's placement came about.

    Attributes:
        by: estimates, measurements of whole plans, or a plan that was made before (a lock file).
        chosen, runner_up: measured plans in words, ``None`` if none were measured.
        margin_s: seconds that the runner-up took longer; by estimates, the smallest margin of a region.
        spread_s: the larger of the two spreads of what was measured.
    """

    by: DecidedBy
    chosen: str | None = None
    runner_up: str | None = None
    margin_s: float | None = None
    spread_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def decided(record: GraphRecord) -> Decided:
    """How a graph's placement came about."""
    timed = measured_trials(record)
    chosen = timed.get(record.tuning.chosen) if record.tuning is not None else None
    if chosen is None:
        margins = [item.margin_s for item in record.alternatives.values() if item.margin_s is not None]
        by: DecidedBy = "earlier plan" if record.plan.search == FIXED else "estimates"
        return Decided(by, margin_s=min(margins, default=None))
    others = [trial for trial in timed.values() if trial is not chosen]
    second = min(others, key=_median, default=None)
    if second is None:
        return Decided("measurements", chosen.choice)
    spreads = [trial.spread_s for trial in (chosen, second) if trial.spread_s is not None]
    margin = _median(second) - _median(chosen)
    return Decided("measurements", chosen.choice, second.choice, margin, max(spreads, default=None))


def measured_trials(record: GraphRecord) -> Mapping[str, TrialRecord]:
    """The candidates that were timed, by their choice in words."""
    trials = record.tuning.trials if record.tuning is not None else ()
    return {trial.choice: trial for trial in trials if trial.median_s is not None}


def measured_alone(record: GraphRecord, backend: str) -> float | None:
    """Seconds that the whole graph took longer with a backend alone than as it runs; ``None`` if nobody measured it."""
    timed = measured_trials(record)
    chosen = timed.get(record.tuning.chosen) if record.tuning is not None else None
    alone = [_median(trial) for name, trial in timed.items() if name.split(",")[0] == backend]
    return min(alone) - _median(chosen) if chosen is not None and alone else None


def _median(trial: TrialRecord) -> float:
    return math.inf if trial.median_s is None else trial.median_s


def alternative_data(alternative: Alternative) -> dict[str, Any]:
    """An alternative as plain data."""
    return {
        "backend": alternative.backend,
        "change_s": alternative.change_s,
        "nodes": alternative.nodes,
        "refused": None if alternative.refused is None else refusal_data(alternative.refused),
    }


def refusal_data(refusal: Refusal) -> dict[str, str]:
    """A refusal as plain data."""
    return {"backend": refusal.backend, "code": refusal.code, "detail": refusal.detail, "node": refusal.node}
