"""Selection: which program runs the next call of an entry, while challengers are tried against the champion.

Place: the top of ``select.live``, asked by the code that runs calls: ``begin`` before, ``end`` after each. Input:
times by the caller's clock, sizes, what holds the program (``steps``). Output: ``Ticket``: which program runs the
call; ``Standing``.
Method: nothing happens before the entry's calls pay for it (``allowance``); a warm-up is free. Then challengers are
wanted, one at a time, in the order of ``challengers``; once one is built, ``turns`` gives both calls,
``paired_decision`` says which program stays. Where no challenger is left, the entry is settled.
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
import threading
from collections.abc import Sequence

from mixbackend.backends.common import forks
from mixbackend.host.warm_up import WarmUp
from mixbackend.select.decision import UNTUNED, Decision
from mixbackend.select.live.allowance import TURNS_IN_ROUND, Allowance, turns_s
from mixbackend.select.live.arbiter import Arbiter
from mixbackend.select.live.challengers import Challenger, worth_trying
from mixbackend.select.live.duel import Duel, Ticket
from mixbackend.select.live.findings import Findings
from mixbackend.select.live.guarded import GUARDED
from mixbackend.select.live.overlaps import Overlaps
from mixbackend.select.live.pace import Pace
from mixbackend.select.live.paired_decision import Outcome, Verdict
from mixbackend.select.live.standing import Happened, Standing
from mixbackend.select.live.steps import Hold
from mixbackend.select.live.turns import TURN_S
from mixbackend.select.live.under_way import UnderWay
from mixbackend.select.live.watches import Lap
from mixbackend.select.turns import FAR_AWAY

FULL = 1.1
"""Of a turn, for the calls under way: seconds of calls scatter."""
_SOON = 2
"""Challengers prepared beside the one that is wanted: each has a worker, which takes seconds to load torch."""
_numbers = itertools.count()


class Selection:
    """See the module's docstring.

    Args:
        estimated_s: of the plan that runs first.
        challengers: in any order.
        arbiter, overlaps: of the process.
        born: when the entry was made.
        queued: whether calls only queue their work: ``end`` is given laps.
        known: what runs first, and what earlier processes found.
        warm_up: while it goes on, nothing has to be paid for.
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
        warm_up: WarmUp | None = None,
    ) -> None:
        self._queued = queued
        self._warm_up = warm_up or WarmUp()
        self._under_way = UnderWay[tuple[Ticket, bool]]()
        self._me = next(_numbers)
        self._arbiter, self._overlaps = arbiter, overlaps
        self._lock = forks.lock()
        self._settled = threading.Event()
        self._findings = Findings(estimated_s, challengers, known)
        self._pace = Pace(self._findings.estimates, born)
        self._waiting = tuple(challengers)
        self._building: Challenger | None = None
        self._stopped = False
        self._champion = 0
        self._duel: Duel | None = None
        self._last = 0
        self._pending: tuple[Ticket, float] | None = None
        self._allowance = Allowance()
        if not challengers:
            self._settled.set()

    # --- calls -------------------------------------------------------------------------------------------------------

    def begin(self, now: float, symbols: tuple[int, ...] = (), stream: int = 0, hold: Hold | None = None) -> Ticket:
        """A call begins: which program runs it."""
        with self._lock:
            self._look_back(now, hold)
            contender, duel = self._turn(now, hold)
            self._last = contender
            tries = self._pace.begin(contender)
            number = self._allowance.calls + 1
            return Ticket(number, contender, tries, now, self._overlaps.begin(), symbols, stream, duel)

    def end(self, ticket: Ticket, now: float, error: str = "", lap: Lap | None = None) -> None:
        """A call has returned; ``error`` where its program failed, whatever answered; ``lap`` where it may go on."""
        alone = self._overlaps.end(ticket.overlap)
        call_s = now - ticket.start
        with self._lock:
            if not self._queued:
                self._took(ticket, call_s, now)
            duel = ticket.duel
            if error and duel is not None and duel is self._duel and ticket.contender == duel.contender:
                self._conclude(duel, duel.lost(), ticket.number, error)
            elif lap is not None:
                self._under_way.add((ticket, alone), lap)
            elif duel is not None and duel is self._duel and not self._queued:
                if alone:
                    self._pending = ticket, call_s
                else:
                    # What follows it is not told from what runs beside it.
                    duel.count(ticket, call_s, call_s, False)

    def ran(self, calls: int, seconds: float, now: float) -> None:
        """The champion ran calls that were part of no comparison."""
        with self._lock:
            self._last = self._champion
            self._allowance = self._allowance.after(seconds, calls=calls)
            self._pace.note(self._champion, seconds / calls, now, True)

    def charge(self, seconds: float) -> None:
        """Trying took so much of the user's time beside calls."""
        with self._lock:
            self._allowance = self._allowance.charged(seconds)

    def affords(self, seconds: float) -> bool:
        """Whether trying may take so much of the user's time beside calls."""
        return self._warm_up.goes_on or self._allowance.fits(seconds)

    def news(self) -> tuple[Happened, ...]:
        """What became of challengers since this was asked."""
        with self._lock:
            return self._findings.news()

    # --- rehearsals, where the user's calls are not to run challengers -----------------------------------------------

    def rehearsal(self, now: float, longest_s: float) -> int | None:
        """The contender of the next turn between two calls, of at most ``longest_s``; ``None`` if there is none now."""
        with self._lock:
            duel = self._duel
            if duel is None or not self.affords(longest_s):
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
            duel.had_turn(call_s)
            if duel.round_ended:
                self._decide(duel)

    # --- challengers -------------------------------------------------------------------------------------------------

    def wanted(self, now: float) -> Challenger | None:
        """The challenger that is to be built now, if any. Once it is told, ``built`` or ``unbuilt`` must follow."""
        with self._lock:
            is_open = self._warm_up.goes_on or self._allowance.is_open
            if self._duel is not None or self._building is not None or not is_open:
                return None
            self._waiting = worth_trying(self._waiting, self._pace.bar_s(self._champion))
            if not self._waiting:
                self._settle()
                return None
            if not self._arbiter.may(self._me, self._allowance.spent_s, now, self._pace.seconds(self._champion)):
                return None
            self._building, *waiting = self._waiting
            self._waiting = tuple(waiting)
            return self._building

    def soon(self) -> tuple[Challenger, ...]:
        """Challengers that are likely to be wanted next, where preparing them now disturbs nothing.

        That is in a warm-up of calls that only queue their work: others share the processor with what is prepared.
        """
        with self._lock:
            if not self._queued or self._stopped or not self._warm_up.goes_on:
                return ()
            return worth_trying(self._waiting, self._pace.bar_s(self._champion))[:_SOON]

    def number(self, challenger: Challenger) -> int:
        """Of a challenger, as tickets name it."""
        return self._findings.number(challenger)

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
            self._duel = Duel(self._findings.number(challenger), challenger, elsewhere)
            return True

    def unbuilt(self, challenger: Challenger, why: str, later: bool = False) -> None:
        """The challenger that was wanted cannot be built; ``later`` where another process may try it."""
        with self._lock:
            if self._stopped:
                return
            assert challenger is self._building, "only what is wanted is built"
            self._building = None
            duel = Duel(self._findings.number(challenger), challenger)
            self._conclude(duel, duel.lost(), self._allowance.calls, why, later)

    def withdraw(self, why: str) -> None:
        """The challenger that is tried can run no more."""
        with self._lock:
            if self._duel is not None:
                self._conclude(self._duel, self._duel.lost(), self._allowance.calls + 1, why)

    def after_fork(self) -> None:
        """In the child of a fork: the challenger that was being built is wanted again."""
        with self._lock:
            if self._building is not None:
                self._waiting, self._building = (self._building, *self._waiting), None
            self._pending = None

    def settled(self, timeout: float | None = None) -> bool:
        """Whether no challenger is left to be tried, waiting for that so long."""
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
            self._findings.leave(*self._unfinished())
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
        """Number of the program that runs."""
        return self._champion

    def decision(self) -> Decision:
        """What was found so far, and which challengers are left to be tried, for the store."""
        with self._lock:
            return self._findings.decision(self._champion, self._unfinished())

    def _unfinished(self) -> tuple[Challenger, ...]:
        tried = () if self._duel is None else (self._duel.challenger,)
        return (*tried, *(() if self._building is None else (self._building,)), *self._waiting)

    def standing(self) -> Standing:
        """What was done so far."""
        with self._lock:
            allowance, duel, findings = self._allowance, self._duel, self._findings
            return Standing(
                champion=findings.names[self._champion],
                trying="" if duel is None else findings.names[duel.contender],
                waiting=len(self._waiting) + (self._building is not None),
                calls=allowance.calls,
                spent_s=allowance.spent_s,
                tried_s=allowance.tried_s,
                turns=findings.rounds + (0 if duel is None else len(duel.turns.rounds)),
                first_result_s=self._pace.first_s,
                best_result_s=self._pace.best_s,
                happened=tuple(findings.happened),
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
            duel.count(ticket, call_s, now - ticket.start, True)
        if duel.round_ended:
            self._decide(duel)
            return
        if duel.turns.hopeless:
            outcome = Outcome(Verdict.NO_DIFFERENCE, duel.looked_at, reason="since calls always overlap")
        elif duel.turns.turn_begins and duel.challenger_runs:
            outcome = self._next_turn_of(duel)
        else:
            return
        if outcome.verdict is not Verdict.OPEN:
            self._conclude(duel, outcome, self._allowance.calls + 1)

    def _decide(self, duel: Duel) -> None:
        """A round has ended."""
        outcome = duel.decided()
        if outcome.verdict is not Verdict.OPEN:
            self._conclude(duel, outcome, self._allowance.calls + 1)

    def _hear_from_device(self, now: float) -> None:
        """Count the calls that the device is done with."""
        for (ticket, alone), seconds in self._under_way.done():
            self._took(ticket, seconds.device_s, now)
            duel = ticket.duel
            if duel is not None and duel is self._duel:
                duel.count(ticket, seconds.device_s, seconds.step_s, alone)

    def _waits_for_device(self, duel: Duel) -> bool:
        """Whether the calls under way will fill the turn, by what such calls took before."""
        mine = self._under_way.count(lambda call: call[0].duel is duel)
        now, call_s = duel.turns.now, self._pace.seen(self._in_turn(duel))
        counted = mine - (not now.skipped)  # a turn's first call is not
        return counted > 0 and (call_s is None or now.filled_s + counted * call_s >= FULL * TURN_S)

    def _in_turn(self, duel: Duel) -> int:
        return duel.contender if duel.challenger_runs else self._champion

    def _next_turn_of(self, duel: Duel) -> Outcome:
        """A further turn of a challenger must be paid for, too, now that it is seen what one takes."""
        turns, still_open = duel.turns, Outcome(Verdict.OPEN)
        if turns.ratio is None or self._allowance.fits(self._turns_s(duel, 1)):
            return still_open
        if turns.ratio < FAR_AWAY and self._warm_up.goes_on:
            return still_open
        duel.give_up_round()
        if turns.ratio < FAR_AWAY:
            return still_open
        return Outcome(Verdict.SLOWER, len(turns.rounds), turns.ratio, reason="far behind in its first turn")

    def _turn(self, now: float, hold: Hold | None) -> tuple[int, Duel | None]:
        if hold is Hold.IN_BACKWARD:
            # It goes on as it began; a program that is gone by now lost between two steps, by what it raised.
            return (self._last if self._is_here(self._last) else self._champion), None
        duel = self._duel
        if hold is not None or duel is None:
            return self._champion, None
        if duel.turns.between_rounds and not self.affords(self._turns_s(duel, TURNS_IN_ROUND)):
            self._arbiter.leave(self._me)
            return self._champion, None
        if not self._arbiter.may(self._me, self._allowance.spent_s, now, self._pace.seconds(self._champion)):
            duel.give_up_round()
            return self._champion, None
        if self._waits_for_device(duel):
            return self._champion, None
        return self._in_turn(duel), duel

    def _is_here(self, contender: int) -> bool:
        return contender == self._champion or (self._duel is not None and contender == self._duel.contender)

    def _turns_s(self, duel: Duel, turns: int) -> float:
        """What so many turns of the challenger may cost beyond the champion."""
        champion_s = self._pace.seconds(self._champion)
        challenger_s = self._pace.expected_s(duel.contender, duel.challenger, self._champion, duel.turns.ratio)
        return turns_s(challenger_s, champion_s, TURN_S, turns)

    def _took(self, ticket: Ticket, call_s: float, now: float) -> None:
        champion_s = self._pace.seconds(self._champion)
        tried = ticket.contender != self._champion
        self._allowance = self._allowance.after(call_s, call_s - champion_s if tried else 0.0)
        if not tried or ticket.tries >= GUARDED:
            # The first calls bind, check and copy: they say nothing of those that follow.
            self._pace.note(ticket.contender, call_s, now, not tried)

    def _conclude(self, duel: Duel, outcome: Outcome, call: int, error: str = "", later: bool = False) -> None:
        change = self._findings.conclude(duel, self._champion, outcome, call, error, later)
        if duel is self._duel:
            self._duel = self._pending = None
        if change == "switched":
            self._champion, self._pace.best_s = duel.contender, None
        if not self._waiting:
            self._settle()

    def _settle(self) -> None:
        self._arbiter.leave(self._me)
        self._under_way.clear()
        self._settled.set()
