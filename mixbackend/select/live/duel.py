"""A duel: the champion against one challenger, as far as calls have shown.

Place: below ``selection``. Input: calls that have ended, by their tickets; whole turns. Output: outcomes of rounds, and
the challenger's trial.
Invariants: the caller has a lock.
Units: seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mixbackend.plan.choice import Choice
from mixbackend.plan.regime_search import WORTH
from mixbackend.select.decision import MEASURED, SLOWER, Trial
from mixbackend.select.live.challengers import Challenger
from mixbackend.select.live.paired_decision import Outcome, Verdict, decide
from mixbackend.select.live.turns import Call, Side, Times, Turns


@dataclass(frozen=True, slots=True)
class Ticket:
    """Which program runs a call.

    Attributes:
        number: of the entry's calls, from 1.
        contender: number of the program that runs it.
        tries: how often this contender ran before.
        start: when it began.
        overlap: see ``Overlaps``.
        symbols, stream: of the call.
        duel: the comparison that it is part of; ``None`` if it is of none.
    """

    number: int
    contender: int
    tries: int
    start: float
    overlap: int
    symbols: tuple[int, ...] = ()
    stream: int = 0
    duel: Duel | None = None


@dataclass(slots=True, eq=False)
class Duel:
    """See the module's docstring.

    Attributes:
        contender: number of the challenger.
        challenger: the challenger itself.
        elsewhere: what it promises to take at the worst of the other sizes that the entry is for, beside the champion
            there, if both take the same here.
        turns: those that were had.
        looked_at: rounds that were decided about.
    """

    contender: int
    challenger: Challenger
    elsewhere: float = 1.0
    turns: Turns = field(default_factory=Turns)
    looked_at: int = 0

    @property
    def round_ended(self) -> bool:
        """Whether there is a round that was not decided about."""
        return len(self.turns.rounds) > self.looked_at

    @property
    def challenger_runs(self) -> bool:
        """Whether the challenger has the turn."""
        return self.turns.side is Side.CHALLENGER

    def count(self, ticket: Ticket, call_s: float, step_s: float, alone: bool) -> None:
        """A call of it has ended.

        Args:
            ticket: of the call.
            call_s: what it took.
            step_s: from its start to the next one's.
            alone: whether no other call of ours ran beside it.
        """
        side = Side.CHALLENGER if ticket.contender == self.contender else Side.CHAMPION
        call = Call(side, call_s, max(step_s, call_s), ticket.symbols, ticket.stream, alone)
        self.turns = self.turns.after(call)

    def had_turn(self, call_s: float) -> None:
        """A whole turn was had, with calls of so many seconds."""
        self.turns = self.turns.with_turn(Times(call_s, call_s))

    def give_up_round(self) -> None:
        """What was to run in it may not."""
        self.turns = self.turns.given_up()

    def decided(self) -> Outcome:
        """What the rounds show, the last of which has ended."""
        self.looked_at = len(self.turns.rounds)
        return _everywhere(decide(self.turns.rounds), self.elsewhere)

    def lost(self) -> Outcome:
        """The challenger can run no more."""
        return Outcome(Verdict.SLOWER, len(self.turns.rounds))

    def champion_trial(self, choice: Choice, estimated_s: float) -> Trial:
        """Rounds of the champion, as decisions keep them."""
        seconds = tuple(found.champion.call_s for found in self.turns.rounds)
        return Trial(choice, estimated_s, MEASURED, rounds_s=seconds)

    def trial(self, error: str) -> Trial:
        """Rounds of the challenger, as decisions keep them; ``error`` is why it is out."""
        challenger = self.challenger
        if error or not self.turns.rounds:
            return Trial(challenger.choice, challenger.estimated_s, "failed" if error else SLOWER, error)
        seconds = tuple(found.challenger.call_s for found in self.turns.rounds)
        return Trial(challenger.choice, challenger.estimated_s, MEASURED, rounds_s=seconds)


def _everywhere(outcome: Outcome, elsewhere: float) -> Outcome:
    """A challenger that is faster here, and promises to be slower at other sizes of the entry, does not win."""
    if outcome.verdict is not Verdict.FASTER or outcome.ratio is None or outcome.ratio * elsewhere <= 1.0 + WORTH:
        return outcome
    reason = f"promises {outcome.ratio * elsewhere:.2f} times the champion's seconds at other sizes"
    return replace(outcome, verdict=Verdict.SLOWER, reason=reason)
