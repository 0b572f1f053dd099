"""Findings: what became of the challengers of one entry, for events, reports and the store.

Place: below ``selection``. Input: duels that ended, and how. Output: ``Happened``; the decision so far.
Invariants: the caller has a lock. Numbers tell contenders apart: 0 is the plan that ran first, then challengers as
they were given.
"""

from __future__ import annotations

from collections.abc import Sequence

from mixbackend.select.decision import Decision, Trial
from mixbackend.select.live.challengers import Challenger
from mixbackend.select.live.duel import Duel
from mixbackend.select.live.paired_decision import Outcome, Verdict
from mixbackend.select.live.standing import SAME_PLAN, Change, Happened


class Findings:
    """See the module's docstring.

    Args:
        estimated_s: of the plan that runs first.
        challengers: in any order.
        known: what runs first, and what earlier processes found.
    """

    def __init__(self, estimated_s: float, challengers: Sequence[Challenger], known: Decision) -> None:
        self._known = known.trials
        self._numbers = {challenger: number for number, challenger in enumerate(challengers, 1)}
        self._choices = {0: known.choice, **{number: item.choice for item, number in self._numbers.items()}}
        self.names = {number: str(choice) for number, choice in self._choices.items()}
        """Of contenders, in words."""
        self.estimates = {0: estimated_s, **{number: item.estimated_s for item, number in self._numbers.items()}}
        """Seconds of a call, by contender."""
        self._trials: dict[int, Trial] = {}
        self._later: tuple[Challenger, ...] = ()
        self.happened: list[Happened] = []
        """In order."""
        self._untold: list[Happened] = []
        self.rounds = 0
        """Of all duels that ended."""

    def number(self, challenger: Challenger) -> int:
        """Of a challenger."""
        return self._numbers[challenger]

    def conclude(
        self, duel: Duel, champion: int, outcome: Outcome, call: int, error: str = "", later: bool = False
    ) -> Change:
        """A duel has ended; what that changes.

        Args:
            duel: that ended.
            champion: number of the program that ran before.
            outcome: what its rounds showed.
            call: number of the call from which that holds.
            error: why the challenger is out.
            later: whether another process may try it.
        """
        change = _change(error, outcome)
        names = self.names[champion], self.names[duel.contender]
        lost = champion if change == "switched" else duel.contender
        happened = Happened(change, call, *names, duel.contender, lost, outcome, error)
        self.happened.append(happened)
        self._untold.append(happened)
        self.rounds += len(duel.turns.rounds)
        if later:
            self.leave(duel.challenger)
            return change
        if duel.turns.rounds:
            self._trials[champion] = duel.champion_trial(self._choices[champion], self.estimates[champion])
        self._trials[duel.contender] = duel.trial(error)
        return change

    def leave(self, *challengers: Challenger) -> None:
        """They are for other processes to try."""
        self._later = (*self._later, *challengers)

    def news(self) -> tuple[Happened, ...]:
        """What happened since this was asked."""
        told, self._untold = tuple(self._untold), []
        return told

    def decision(self, champion: int, untried: Sequence[Challenger]) -> Decision:
        """What was found so far, and which challengers are left to be tried, for the store."""
        trials = {str(trial.choice): trial for trial in (*self._known, *self._trials.values())}
        return Decision(self._choices[champion], tuple(trials.values()), (*untried, *self._later))


def _change(error: str, outcome: Outcome) -> Change:
    if error:
        return "same" if error.endswith(SAME_PLAN) else "out"
    return "switched" if outcome.verdict is Verdict.FASTER else "kept"
