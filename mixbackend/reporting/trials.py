"""Trials: what was measured of whole plans of a graph before it was placed.

Place: below ``decided`` and ``records``; made of a decision of ``select``.
Invariants: plain data; the dictionary is part of the report's, schema version 1.
Units: seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One candidate that was measured for a graph.

    Attributes:
        choice: in words.
        status: ``measured``, ``slower`` (it left early), or what went wrong.
        estimated_s: by the cost model.
        median_s, spread_s: of one call; ``None`` where there is none.
    """

    choice: str
    status: str
    estimated_s: float
    median_s: float | None = None
    spread_s: float | None = None


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """What was measured before a graph was placed.

    Attributes:
        chosen: the fastest, in words.
        trials: of all candidates, in the order in which they were started.
    """

    chosen: str
    trials: tuple[TrialRecord, ...]

    def to_dict(self) -> dict[str, Any]:
        """Entry of a graph in the report's dictionary."""
        rows = [
            {
                "choice": trial.choice,
                "status": trial.status,
                "estimated_s": finite(trial.estimated_s),
                "median_s": finite(trial.median_s),
                "spread_s": finite(trial.spread_s),
            }
            for trial in self.trials
        ]
        return {"chosen": self.chosen, "trials": rows}

    def timed(self) -> dict[str, TrialRecord]:
        """The candidates that were timed, by their choice in words."""
        return {trial.choice: trial for trial in self.trials if trial.median_s is not None}


def finite(seconds: float | None) -> float | None:
    """The number, or ``None`` where JSON could not hold it."""
    return seconds if seconds is not None and math.isfinite(seconds) else None
