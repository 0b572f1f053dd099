"""Standing: what live selection of one entry has done so far, for events, reports and the store.

Place: made by ``selection``. Invariants: values; the dictionary is plain data.
Units: seconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from mixbackend.select.live.paired_decision import Outcome

SAME_PLAN = "it is the plan that runs"
"""Why a challenger is not built where nothing would be compared."""

Change = Literal["switched", "kept", "same", "out"]
"""A challenger took the champion's place; it did not; it came to the champion's plan; it failed."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What became of one challenger.

    Attributes:
        change: see ``Change``.
        call: number of the entry's call that ran it first, or from which it is not tried.
        champion, challenger: choices in words.
        contender: the challenger's number.
        lost: number of the program that is not to run any more.
        outcome: what the rounds showed.
        detail: why it is not tried.
    """

    change: Change
    call: int
    champion: str
    challenger: str
    contender: int
    lost: int
    outcome: Outcome
    detail: str = ""

    def __str__(self) -> str:
        if self.change == "same":
            return f"{self.challenger} comes to the plan that runs, at call {self.call}"
        if self.change == "out":
            return f"{self.challenger} is out at call {self.call}: {self.detail}"
        seen, ratio = self.outcome, self.outcome.ratio
        times = "" if ratio is None else f", {ratio:.3f} of its time"
        verb = "took the place of" if self.change == "switched" else "did not take the place of"
        found = f"{seen.verdict.value} {seen.reason}".strip()
        return f"{self.challenger} {verb} {self.champion} at call {self.call} ({found}; {seen.rounds} rounds{times})"


@dataclass(frozen=True, slots=True)
class Standing:
    """See the module's docstring.

    Attributes:
        champion: the program that runs, in words.
        trying: the challenger that is tried, in words; empty if none is.
        waiting: challengers that were not tried yet.
        calls, spent_s, tried_s: of the allowance.
        turns: rounds of turns that counted, of all challengers.
        first_result_s, best_result_s: from when the entry was made to the end of its first call, and of the first call
            of the program that runs now; ``None`` before.
        happened: in order.
    """

    champion: str
    trying: str
    waiting: int
    calls: int
    spent_s: float
    tried_s: float
    turns: int
    first_result_s: float | None
    best_result_s: float | None
    happened: tuple[Happened, ...]

    @property
    def switches(self) -> tuple[Happened, ...]:
        """Those that changed the program."""
        return tuple(item for item in self.happened if item.change == "switched")

    def to_dict(self) -> dict[str, Any]:
        """Entry of a graph in the report's dictionary."""
        plain = {name: value for name, value in asdict(self).items() if name != "happened"}
        rows = [
            {
                "change": item.change,
                "call": item.call,
                "champion": item.champion,
                "challenger": item.challenger,
                "verdict": item.outcome.verdict.value,
                "rounds": item.outcome.rounds,
                "ratio": item.outcome.ratio,
                "noise": item.outcome.noise,
                "detail": item.detail or item.outcome.reason,
            }
            for item in self.happened
        ]
        return {**plain, "happened": rows}
