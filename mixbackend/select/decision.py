"""Decision: which choice was taken for a graph, and what every candidate did.

Place: made by ``tuner``, kept in the database as JSON, shown by the report.
Invariants: reading checks every field; what does not fit, or was written by a later version, counts as missing and is
measured again.
Units: seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.reporting.trials import TrialRecord, TuningRecord
from mixbackend.select.live.challengers import Challenger

MEASURED = "measured"
SLOWER = "slower"
"""Left the race early: it could not win any more."""
NO_TIME = "no_time"
"""The budget was spent before its turn came."""

FORMAT = 2
"""Number of the format of the plain data; format 1 had no number, and no ``waiting``."""

TIE = 0.01
"""Candidates within this share of the fastest are as fast; the earliest of them wins, so that tuning again agrees."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one candidate did.

    Attributes:
        choice: the candidate.
        estimated_s: by the cost model.
        status: ``measured``, ``slower``, or what went wrong (``crash``, ``timeout``, ``out_of_memory``,
            ``wrong``, ``failed``, ``no_time``).
        detail: in words.
        rounds_s: median seconds of one call in each of its turns: those of the final, for candidates that came so far.
    """

    choice: Choice
    estimated_s: float
    status: str
    detail: str = ""
    rounds_s: tuple[float, ...] = ()

    @property
    def median_s(self) -> float | None:
        """Over its turns; ``None`` if it had none."""
        return statistics.median(self.rounds_s) if self.rounds_s else None

    @property
    def spread_s(self) -> float | None:
        """Distance between the quartiles of its turns; ``None`` with fewer than two."""
        if len(self.rounds_s) < 2:
            return None
        low, _, high = statistics.quantiles(self.rounds_s, n=4, method="inclusive")
        return high - low

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "choice": self.choice.to_dict(),
            "estimated_s": self.estimated_s,
            "status": self.status,
            "detail": self.detail,
            "rounds_s": list(self.rounds_s),
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """See the module's docstring.

    Attributes:
        choice: the one that was taken.
        trials: of all candidates, in the order in which they were started.
        waiting: challengers that are still to be tried against the choice, by whatever process comes next.
    """

    choice: Choice = DEFAULT
    trials: tuple[Trial, ...] = ()
    waiting: tuple[Challenger, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether any candidate finished."""
        return any(trial.status == MEASURED for trial in self.trials)

    def record(self) -> TuningRecord | None:
        """For the report; ``None`` if nothing was measured."""
        if not self.trials:
            return None
        rows = tuple(
            TrialRecord(str(trial.choice), trial.status, trial.estimated_s, trial.median_s, trial.spread_s)
            for trial in self.trials
        )
        return TuningRecord(str(self.choice), rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "format": FORMAT,
            "choice": self.choice.to_dict(),
            "trials": [trial.to_dict() for trial in self.trials],
            "waiting": [challenger.to_dict() for challenger in self.waiting],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Decision:
        """A decision from plain data.

        Raises:
            ValueError: the data is not that of a decision.
        """
        try:
            if data.get("format", 1) not in range(1, FORMAT + 1):
                raise ValueError(f"a decision of format {data['format']}, and {FORMAT} is the last one known here")
            waiting = tuple(map(Challenger.from_dict, data.get("waiting", ())))
            return cls(Choice.from_dict(data["choice"]), tuple(map(_read_trial, data["trials"])), waiting)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no decision: {error!r}") from error

    @classmethod
    def read(cls, data: Mapping[str, Any] | None) -> Decision:
        """What was kept; ``UNTUNED`` if nothing was that can be read."""
        try:
            return UNTUNED if data is None else cls.from_dict(data)
        except ValueError:
            return UNTUNED


UNTUNED = Decision()


def joined(known: Decision, found: Decision) -> Decision:
    """What two processes know that tried a graph at the same time; of the same trial, what was found last.

    Where the choices differ, a decision with no challenger left to be tried holds before one with some left; otherwise
    what was found last holds.
    """
    if known is UNTUNED or str(known.choice) != str(found.choice):
        return known if known.trials and not known.waiting and found.waiting else found
    trials = {str(trial.choice): trial for trial in (*known.trials, *found.trials)}
    others = {str(item.choice) for item in known.waiting}
    waiting = tuple(item for item in found.waiting if str(item.choice) in others and str(item.choice) not in trials)
    return Decision(found.choice, tuple(trials.values()), waiting)


def decide(trials: Sequence[Trial]) -> Decision:
    """The fastest; among equals, the one that was started first; the default if nothing was measured.

    The machine's speed drifts by more than candidates differ, so they are compared within each round, with the one of
    the least median: the median of these ratios counts. A candidate that left early was slower than another one and
    cannot win, nor be what others are compared with. One round less is not early, for time may end within a round.
    """
    most = max((len(trial.rounds_s) for trial in trials if trial.status == MEASURED), default=0)
    finished = [trial for trial in trials if trial.status == MEASURED and len(trial.rounds_s) >= max(most - 1, 1)]
    if not finished:
        return Decision(DEFAULT, tuple(trials))
    leader = min(finished, key=lambda trial: statistics.median(trial.rounds_s))
    ratios = [statistics.median(round_ratios(trial.rounds_s, leader.rounds_s)) for trial in finished]
    best = min(ratios)
    chosen = next(trial for trial, ratio in zip(finished, ratios, strict=True) if ratio <= best * (1.0 + TIE))
    return Decision(chosen.choice, tuple(trials))


def round_ratios(rounds: Sequence[float], others: Sequence[float]) -> list[float]:
    """What each turn took, as a multiple of another's of the same round; over the rounds that both ran."""
    return [mine / other for mine, other in zip(rounds, others, strict=False)]


def _read_trial(data: Mapping[str, Any]) -> Trial:
    rounds = tuple(float(value) for value in data["rounds_s"])
    estimated, status, detail = float(data["estimated_s"]), str(data["status"]), str(data["detail"])
    return Trial(Choice.from_dict(data["choice"]), estimated, status, detail, rounds)
