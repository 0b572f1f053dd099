"""Selection: which program runs the next call of an entry, while challengers are tried against the champion.

Place: the top of ``select.live``, asked by whoever runs calls: ``begin`` before, ``end`` after each. Input: times by
the caller's clock, sizes, what holds the program (``steps``). Output: ``Ticket``: who runs the call; ``Standing``.
Method: nothing happens before the entry's calls pay for it (``allowance``). Then challengers are wanted, one at a
time, the cheapest build first (``challengers``); once one is built, ``turns`` gives both calls, ``paired_decision``
says who stays. Where no challenger is left, the entry is settled.
Where calls only queue their work (``queued``), what they took is told later, in their order (``watches``): once the
calls of a turn that are under way will fill it, the champion runs until they are done, and these calls are no turn's.
Invariants: safe for threads. Every call has one program; it is never changed while something holds it; a round begins
only where it may be paid for. Numbers tell contenders apart: 0 is the plan by estimates, then challengers as they
were given.
Non-goals: building, running and letting go of programs, which the caller does; a challenger's seconds at other sizes
than the champion's are charged as if they were at its own.
Units: seconds.
"""

from __future__ import annotations

import itertools
import statistics
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mixbackend.backends.common import forks
from mixbackend.plan.regime_search import WORTH
from mixbackend.select.decision import MEASURED, SLOWER, UNTUNED, Decision, Trial
from mixbackend.select.live.allowance import TURNS_IN_ROUND, Allowance, turns_s
from mixbackend.select.live.arbiter import Arbiter
from mixbackend.select.live.challengers import Challenger, worth_trying
from mixbackend.select.live.guarded import GUARDED
from mixbackend.select.live.overlaps import Overlaps
from mixbackend.select.live.paired_decision import Outcome, Verdict, decide
from mixbackend.select.live.standing import Change, Happened, Standing
from mixbackend.select.live.steps import Hold
from mixbackend.select.live.turns import TURN_S, Call, Side, Times, Turns
from mixbackend.select.live.under_way import UnderWay
from mixbackend.select.live.watches import Lap
from mixbackend.select.turns import FAR_AWAY

FULL = 1.1
"""Of a turn, for the calls under way: seconds of calls scatter."""
_LATEST = 9
"""Calls of a program that say what it takes now."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Ticket:
    """Who runs a call.

    Attributes:
        number: of the entry's calls, from 1.
        contender: who runs it.
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
    duel: _Duel | None = None


@dataclass(slots=True, eq=False)
class _Duel:
    """The champion against one challenger."""

    contender: int
    challenger: Challenger
    elsewhere: float = 1.0
    turns: Turns = field(default_factory=Turns)
    looked_at: int = 0


class Selection:
    """See the module's docstring.

    Args:
        estimated_s: of the plan that runs first.
        challengers: in any order.
        arbiter, overlaps: of the process.
        born: when the entry was made.
        queued: whether calls only queue their work: ``end`` is given laps.
        known: what runs first, and what earlier processes found.
    """

    def __init__(
        self,
        estimated_s: float,
        challengers: Sequence[Challenger],
        arbiter: Arbiter,
        overlaps: Overlaps,
        born: float,
        queued: bool = False,
        known: Decision = UNTUNED,
    ) -> None:
        self._queued = queued
        self._under_way = UnderWay[tuple[Ticket, bool]]()
        self._me = next(_numbers)
        self._arbiter, self._overlaps, self._born = arbiter, overlaps, born
        self._lock = forks.lock()
        self._settled = threading.Event()
        self._numbered = {challenger: number for number, challenger in enumerate(challengers, 1)}
        self._waiting = tuple(challengers)
        self._building: Challenger | None = None
        self._stopped = False
        self._known, self._later = known.trials, tuple[Challenger, ...]()
        self._names = {0: str(known.choice), **{number: str(item.choice) for item, number in self._numbered.items()}}
        self._choices = {0: known.choice, **{number: item.choice for item, number in self._numbered.items()}}
        self._estimates = {0: estimated_s, **{number: item.estimated_s for item, number in self._numbered.items()}}
        self._champion = 0
        self._duel: _Duel | None = None
        self._last = 0
        self._pending: tuple[Ticket, float] | None = None
        self._allowance = Allowance()
        self._latest: dict[int, deque[float]] = {}
        self._tries: dict[int, int] = {}
        self._trials: dict[int, Trial] = {}
        self._happened: list[Happened] = []
        self._untold: list[Happened] = []
        self._rounds = 0
        self._first_s: float | None = None
        self._best_s: float | None = None
        if not challengers:
            self._settled.set()

    # --- calls -------------------------------------------------------------------------------------------------------

    def begin(self, now: float, symbols: tuple[int, ...] = (), stream: int = 0, hold: Hold | None = None) -> Ticket:
        """A call begins: who runs it."""
        with self._lock:
            self._look_back(now, hold)
            contender, duel = self._turn(now, hold)
            self._last = contender
            tries = self._tries.get(contender, 0)
            self._tries[contender] = tries + 1
            number = self._allowance.calls + 1
            return Ticket(number, contender, tries, now, self._overlaps.begin(), symbols, stream, duel)

    def end(self, ticket: Ticket, now: float, error: str = "", lap: Lap | None = None) -> None:
        """A call has returned; ``error`` where its program failed, whoever answered; ``lap`` where it may go on."""
        alone = self._overlaps.end(ticket.overlap)
        call_s = now - ticket.start
        with self._lock:
            if not self._queued:
                self._took(ticket, call_s, now)
            duel = ticket.duel
            if error and duel is not None and duel is self._duel and ticket.contender == duel.contender:
                self._conclude(duel, Outcome(Verdict.SLOWER, len(duel.turns.rounds)), ticket.number, error)
            elif lap is not None:
                self._under_way.add((ticket, alone), lap)
            elif duel is not None and duel is self._duel and not self._queued:
                if alone:
                    self._pending = ticket, call_s
                else:
                    # What follows it is not told from what runs beside it.
                    duel.turns = duel.turns.after(_call(ticket, duel, call_s, call_s, False))

    def ran(self, calls: int, seconds: float, now: float) -> None:
        """The champion ran calls that were part of no comparison."""
        with self._lock:
            self._last = self._champion
            self._allowance = self._allowance.after(seconds, calls=calls)
            self._note(self._champion, seconds / calls, now)

    def charge(self, seconds: float) -> None:
        """Trying took so much of the user's time beside calls."""
        with self._lock:
            self._allowance = self._allowance.charged(seconds)

    def affords(self, seconds: float) -> bool:
        """Whether trying may take so much of the user's time beside calls."""
        return self._allowance.fits(seconds)

    def news(self) -> tuple[Happened, ...]:
        """What became of challengers since this was asked."""
        with self._lock:
            told, self._untold = tuple(self._untold), []
            return told

    # --- rehearsals, where the user's calls are not to run challengers -----------------------------------------------

    def rehearsal(self, now: float, longest_s: float) -> int | None:
        """Who has the next turn between two calls, of so many seconds at most; ``None`` if none is to be had now."""
        with self._lock:
            duel = self._duel
            if duel is None or not self._allowance.fits(longest_s):
                return None
            contender, ongoing = self._turn(now, None)
            return None if ongoing is None else contender

    def rehearsed(self, call_s: float | None, took_s: float) -> None:
        """The turn was had, or spent on warming up.

        Args:
            call_s: seconds of a call in it; ``None`` while it warms up.
            took_s: of the user's time.
        """
        with self._lock:
            self._allowance = self._allowance.charged(took_s)
            duel = self._duel
            if duel is None or call_s is None:
                return
            duel.turns = duel.turns.with_turn(Times(call_s, call_s))
            if len(duel.turns.rounds) > duel.looked_at:
                self._decide(duel)

    # --- challengers -------------------------------------------------------------------------------------------------

    def wanted(self, now: float) -> Challenger | None:
        """Who is to be built now; ``None`` if nobody is. Once it is told, ``built`` or ``unbuilt`` must follow."""
        with self._lock:
            if self._duel is not None or self._building is not None or not self._allowance.is_open:
                return None
            # Estimates err together as well: where the champion is faster than its own, so may all others be.
            bar = max(self._seconds(self._champion), self._estimates[self._champion])
            self._waiting = worth_trying(self._waiting, bar)
            if not self._waiting:
                self._settle()
                return None
            if not self._arbiter.may(self._me, self._allowance.spent_s, now, self._seconds(self._champion)):
                return None
            self._building, *waiting = self._waiting
            self._waiting = tuple(waiting)
            return self._building

    def number(self, challenger: Challenger) -> int:
        """Of a challenger, as tickets name it."""
        return self._numbered[challenger]

    def built(self, challenger: Challenger, elsewhere: float = 1.0) -> bool:
        """The challenger that was wanted can run; whether it will, or everything was stopped meanwhile.

        Args:
            challenger: that was wanted.
            elsewhere: what it promises to take at the worst of the other sizes that the entry is for, beside the
                champion there, if both take the same here.
        """
        with self._lock:
            if self._stopped:
                return False
            assert challenger is self._building, "only what is wanted is built"
            self._building = None
            self._duel = _Duel(self._numbered[challenger], challenger, elsewhere)
            return True

    def unbuilt(self, challenger: Challenger, why: str, later: bool = False) -> None:
        """The challenger that was wanted cannot be built; ``later`` where another process may try it."""
        with self._lock:
            if self._stopped:
                return
            assert challenger is self._building, "only what is wanted is built"
            self._building = None
            duel = _Duel(self._numbered[challenger], challenger)
            self._conclude(duel, Outcome(Verdict.SLOWER), self._allowance.calls, why, later)

    def withdraw(self, why: str) -> None:
        """The challenger that is tried can run no more."""
        with self._lock:
            if self._duel is not None:
                lost = Outcome(Verdict.SLOWER, len(self._duel.turns.rounds))
                self._conclude(self._duel, lost, self._allowance.calls + 1, why)

    def after_fork(self) -> None:
        """In the child of a fork: who was being built is wanted again."""
        with self._lock:
            if self._building is not None:
                self._waiting, self._building = (self._building, *self._waiting), None
            self._pending = None

    def settled(self, timeout: float | None = None) -> bool:
        """Whether nobody is left to be tried, waiting for that so long."""
        if self._settled.is_set() or timeout == 0.0:
            return self._settled.is_set()  # without the lock that waiting takes
        return self._settled.wait(timeout)

    def stop(self) -> None:
        """Nothing is tried any more; the champion stays."""
        with self._lock:
            if self._stopped:
                return
            if self._duel is not None:
                stopped = Outcome(Verdict.NO_DIFFERENCE, len(self._duel.turns.rounds), reason="since it was stopped")
                self._conclude(self._duel, stopped, self._allowance.calls + 1, later=True)
            self._later = (*self._later, *self._unfinished())
            self._stopped, self._building, self._waiting = True, None, ()
            self._settle()

    def leave(self) -> None:
        """No call will come any more; takes no lock."""
        self._arbiter.leave(self._me)

    @property
    def trying(self) -> bool:
        """Whether calls are part of a comparison."""
        return self._duel is not None

    @property
    def champion(self) -> int:
        """Number of who runs."""
        return self._champion

    def decision(self) -> Decision:
        """What was found so far, and who is left to be tried, for the store."""
        with self._lock:
            trials = {str(trial.choice): trial for trial in (*self._known, *self._trials.values())}
            left = (*self._unfinished(), *self._later)
            return Decision(self._choices[self._champion], tuple(trials.values()), left)

    def _unfinished(self) -> tuple[Challenger, ...]:
        tried = () if self._duel is None else (self._duel.challenger,)
        return (*tried, *(() if self._building is None else (self._building,)), *self._waiting)

    def standing(self) -> Standing:
        """What was done so far."""
        with self._lock:
            allowance, duel = self._allowance, self._duel
            return Standing(
                champion=self._names[self._champion],
                trying="" if duel is None else self._names[duel.contender],
                waiting=len(self._waiting) + (self._building is not None),
                calls=allowance.calls,
                spent_s=allowance.spent_s,
                tried_s=allowance.tried_s,
                turns=self._rounds + (0 if duel is None else len(duel.turns.rounds)),
                first_result_s=self._first_s,
                best_result_s=self._best_s,
                happened=tuple(self._happened),
            )

    # --- under the lock ----------------------------------------------------------------------------------------------

    def _look_back(self, now: float, hold: Hold | None) -> None:
        """Count the call that ended last, now that the next one begins; decide if that ends a round."""
        pending, self._pending, duel = self._pending, None, self._duel
        if hold is not None:
            return
        self._hear_from_device(now)
        if duel is None:
            return
        if pending is not None and pending[0].duel is duel:
            ticket, call_s = pending
            duel.turns = duel.turns.after(_call(ticket, duel, call_s, now - ticket.start, True))
        if len(duel.turns.rounds) > duel.looked_at:
            self._decide(duel)
            return
        if duel.turns.hopeless:
            outcome = Outcome(Verdict.NO_DIFFERENCE, duel.looked_at, reason="since calls always overlap")
        elif duel.turns.turn_begins and duel.turns.side is Side.CHALLENGER:
            outcome = self._next_turn_of(duel)
        else:
            return
        if outcome.verdict is not Verdict.OPEN:
            self._conclude(duel, outcome, self._allowance.calls + 1)

    def _decide(self, duel: _Duel) -> None:
        """A round has ended."""
        duel.looked_at = len(duel.turns.rounds)
        outcome = _everywhere(decide(duel.turns.rounds), duel.elsewhere)
        if outcome.verdict is not Verdict.OPEN:
            self._conclude(duel, outcome, self._allowance.calls + 1)

    def _hear_from_device(self, now: float) -> None:
        """Count the calls that the device is done with."""
        for (ticket, alone), seconds in self._under_way.done():
            self._took(ticket, seconds.device_s, now)
            duel = ticket.duel
            if duel is not None and duel is self._duel:
                duel.turns = duel.turns.after(_call(ticket, duel, seconds.device_s, seconds.step_s, alone))

    def _waits_for_device(self, duel: _Duel) -> bool:
        """Whether the calls under way will fill the turn, by what such calls took before."""
        mine = self._under_way.count(lambda call: call[0].duel is duel)
        side, now = duel.turns.side, duel.turns.now
        contender = duel.contender if side is Side.CHALLENGER else self._champion
        latest = self._latest.get(contender)
        counted = mine - (not now.skipped)  # a turn's first call is not
        return counted > 0 and (not latest or now.filled_s + counted * statistics.median(latest) >= FULL * TURN_S)

    def _next_turn_of(self, duel: _Duel) -> Outcome:
        """A further turn of a challenger must be paid for, too, now that it is seen what one takes."""
        turns, still_open = duel.turns, Outcome(Verdict.OPEN)
        if turns.ratio is None or self._fits(duel, 1):
            return still_open
        duel.turns = turns.given_up()
        if turns.ratio < FAR_AWAY:
            return still_open
        return Outcome(Verdict.SLOWER, len(turns.rounds), turns.ratio, reason="far behind in its first turn")

    def _turn(self, now: float, hold: Hold | None) -> tuple[int, _Duel | None]:
        if hold is Hold.IN_BACKWARD:
            # It goes on as it began; a program that is gone by now lost between two steps, by what it raised.
            return (self._last if self._is_here(self._last) else self._champion), None
        duel = self._duel
        if hold is not None or duel is None:
            return self._champion, None
        if duel.turns.between_rounds and not self._fits(duel, TURNS_IN_ROUND):
            self._arbiter.leave(self._me)
            return self._champion, None
        if not self._arbiter.may(self._me, self._allowance.spent_s, now, self._seconds(self._champion)):
            duel.turns = duel.turns.given_up()
            return self._champion, None
        if self._waits_for_device(duel):
            return self._champion, None
        side = duel.turns.side
        return (duel.contender if side is Side.CHALLENGER else self._champion), duel

    def _is_here(self, contender: int) -> bool:
        return contender == self._champion or (self._duel is not None and contender == self._duel.contender)

    def _fits(self, duel: _Duel, turns: int) -> bool:
        """Whether so many turns of the challenger may be paid for."""
        champion_s, ratio = self._seconds(self._champion), duel.turns.ratio
        if duel.contender in self._latest:
            challenger_s = self._seconds(duel.contender)
        else:
            # Where the champion takes longer than was estimated, so may all that share the machine with it.
            late = max(1.0, champion_s / self._estimates[self._champion])
            challenger_s = late * duel.challenger.most_s if ratio is None else ratio * champion_s
        return self._allowance.fits(turns_s(challenger_s, champion_s, TURN_S, turns))

    def _took(self, ticket: Ticket, call_s: float, now: float) -> None:
        champion_s = self._seconds(self._champion)
        tried = ticket.contender != self._champion
        self._allowance = self._allowance.after(call_s, call_s - champion_s if tried else 0.0)
        if not tried or ticket.tries >= GUARDED:
            # The first calls bind, check and copy: they say nothing of those that follow.
            self._note(ticket.contender, call_s, now)

    def _note(self, contender: int, call_s: float, now: float) -> None:
        self._latest.setdefault(contender, deque(maxlen=_LATEST)).append(call_s)
        if self._first_s is None:
            self._first_s = now - self._born
        if self._best_s is None and contender == self._champion:
            self._best_s = now - self._born

    def _seconds(self, contender: int) -> float:
        latest = self._latest.get(contender)
        return statistics.median(latest) if latest else self._estimates[contender]

    def _conclude(self, duel: _Duel, outcome: Outcome, call: int, error: str = "", later: bool = False) -> None:
        change: Change = "out" if error else "switched" if outcome.verdict is Verdict.FASTER else "kept"
        names = self._names[self._champion], self._names[duel.contender]
        lost = self._champion if change == "switched" else duel.contender
        happened = Happened(change, call, *names, duel.contender, lost, outcome, error)
        self._happened.append(happened)
        self._untold.append(happened)
        self._rounds += len(duel.turns.rounds)
        rounds = duel.turns.rounds
        if later:
            self._later = (*self._later, duel.challenger)
        elif rounds:
            choice, seconds = self._choices[self._champion], tuple(found.champion.call_s for found in rounds)
            self._trials[self._champion] = Trial(choice, self._estimates[self._champion], MEASURED, rounds_s=seconds)
        if not later:
            self._trials[duel.contender] = _trial(duel, error)
        if duel is self._duel:
            self._duel = self._pending = None
        if change == "switched":
            self._champion, self._best_s = duel.contender, None
        if not self._waiting:
            self._settle()

    def _settle(self) -> None:
        self._arbiter.leave(self._me)
        self._under_way.clear()
        self._settled.set()


def _everywhere(outcome: Outcome, elsewhere: float) -> Outcome:
    """A challenger that is faster here, and promises to be slower at other sizes of the entry, does not win."""
    if outcome.verdict is not Verdict.FASTER or outcome.ratio is None or outcome.ratio * elsewhere <= 1.0 + WORTH:
        return outcome
    reason = f"promises {outcome.ratio * elsewhere:.2f} times the champion's seconds at other sizes"
    return replace(outcome, verdict=Verdict.SLOWER, reason=reason)


def _call(ticket: Ticket, duel: _Duel, call_s: float, step_s: float, alone: bool) -> Call:
    side = Side.CHALLENGER if ticket.contender == duel.contender else Side.CHAMPION
    return Call(side, call_s, max(step_s, call_s), ticket.symbols, ticket.stream, alone)


def _trial(duel: _Duel, error: str) -> Trial:
    """Rounds of a challenger, as decisions keep them: seconds of a call."""
    challenger = duel.challenger
    if error or not duel.turns.rounds:
        return Trial(challenger.choice, challenger.estimated_s, "failed" if error else SLOWER, error)
    seconds = tuple(found.challenger.call_s for found in duel.turns.rounds)
    return Trial(challenger.choice, challenger.estimated_s, MEASURED, rounds_s=seconds)
