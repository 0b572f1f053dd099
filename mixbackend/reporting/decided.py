"""How a graph's placement was decided, by how much, and alternatives as plain data.

Place: below ``records`` and ``why``. Pure functions of what was measured and of the plan.
Invariants: where plans were measured, the margin is between measured medians, and estimates are not given as a reason.
Units: seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mixbackend.contracts.plan import Refusal
from mixbackend.partitioner.plan_canonical import FIXED
from mixbackend.reporting.trials import TrialRecord, TuningRecord

if TYPE_CHECKING:
    from mixbackend.partitioner.alternatives import Alternative

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


def by_measurements(tuning: TuningRecord | None) -> Decided | None:
    """How a placement came about that had the quickest plan of those measured; ``None`` if it had not."""
    timed = tuning.timed() if tuning is not None else {}
    chosen = timed.get(tuning.chosen) if tuning is not None else None
    if chosen is None:
        return None
    others = [trial for trial in timed.values() if trial is not chosen]
    second = min(others, key=_median, default=None)
    if second is None:
        return Decided("measurements", chosen.choice)
    spreads = [trial.spread_s for trial in (chosen, second) if trial.spread_s is not None]
    margin = _median(second) - _median(chosen)
    return Decided("measurements", chosen.choice, second.choice, margin, max(spreads, default=None))


def without_measurements(search: str, margins: Iterable[float | None]) -> Decided:
    """How a placement came about that was not measured.

    Args:
        search: of the plan.
        margins: of its regions, ``None`` where there is no alternative.
    """
    by: DecidedBy = "earlier plan" if search == FIXED else "estimates"
    return Decided(by, margin_s=min((margin for margin in margins if margin is not None), default=None))


def measured_alone(tuning: TuningRecord | None, backend: str) -> float | None:
    """Seconds that the whole graph took longer with a backend alone than as it runs; ``None`` if not measured."""
    timed = tuning.timed() if tuning is not None else {}
    chosen = timed.get(tuning.chosen) if tuning is not None else None
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
