"""Live calls: the calls of one entry while challengers are tried in them.

Place: between ``selection``, which says which program runs a call, and what prepares programs (``preparation``).
Input: the champion, a selection, a preparer; the values of calls. Output: their results.
Method: each call is run once, by the program in turn. While nothing is compared the champion runs, calls are only
counted (``call_meter``), and now and then the next step is taken after a call: a challenger is asked for, or loaded.
A challenger's first calls are copied for (``guarded``); the champion answers what it raises there. A program that is
not to run any more is let go of once no call runs it.
Invariants: safe for threads. No lock is held while a program runs, is loaded or is let go of. Nothing of this raises
into a call.
Non-goals: preparing; what an entry does once it is settled: its champion can run without this.
Units: seconds.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mixbackend.backends.common import forks
from mixbackend.select.live.call_meter import CallMeter
from mixbackend.select.live.challengers import Challenger
from mixbackend.select.live.duel import Ticket
from mixbackend.select.live.guarded import GUARDED, guarded
from mixbackend.select.live.preparation import Contender, NotNowError, Preparation, Preparer
from mixbackend.select.live.selection import Selection
from mixbackend.select.live.standing import Happened
from mixbackend.select.live.steps import Hold, Situation, situation, why_not
from mixbackend.select.live.watches import Lap, Watch

logger = logging.getLogger("mixbackend")


class LiveCalls:
    """See the module's docstring.

    Args:
        champion: what runs first.
        selection: of this entry.
        preparer: prepares its challengers.
        size_of_call: reads what tells sizes of calls apart off the values; ``None`` if all are alike.
        now: what the process is doing, for ``steps``.
        clock: seconds.
        watch: of the device, where calls only queue their work.
    """

    def __init__(
        self,
        champion: Contender,
        selection: Selection,
        preparer: Preparer,
        size_of_call: Callable[[Sequence[Any]], int] | None = None,
        now: Callable[[], Situation] = situation,
        clock: Callable[[], float] = time.perf_counter,
        watch: Watch | None = None,
    ) -> None:
        self.selection = selection
        self._watch, self._meter = watch, CallMeter(watch)
        self._preparer, self._size_of_call, self._now, self._clock = preparer, size_of_call, now, clock
        self._lock = forks.lock()
        self._looking = forks.long_lock()
        forks.follow(self)
        self._contenders = {0: champion}
        self._running: Counter[int] = Counter()
        self._lost: set[int] = set()
        self._news: list[Happened] = []
        self._wanted: Challenger | None = None
        self._preparation: Preparation | None = None
        self._begun: dict[int, Preparation] = {}
        """By number, of challengers that are not wanted yet."""
        self._seat: tuple[int, Contender] | None = (0, champion)
        """The champion, while nothing is compared."""
        self.has_news = False
        """Whether ``take_news`` has something, or everything is over."""

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        """Run a call; empties the list."""
        with self._lock:
            seat = self._seat
            if seat is not None:
                self._running[seat[0]] += 1
        return self._compared(values) if seat is None else self._counted(values, *seat)

    @property
    def champion(self) -> Contender:
        """What runs when nothing is tried."""
        with self._lock:
            return self._contenders[self.selection.champion]

    @property
    def over(self) -> bool:
        """Whether the champion is the only program, and will be."""
        return self.selection.settled(0.0) and len(self._contenders) == 1 and not self._news

    def take_news(self) -> tuple[Happened, ...]:
        """What became of challengers since this was asked."""
        with self._lock:
            news, self._news = tuple(self._news), []
            self.has_news = False
        self.has_news = self.over
        return news

    def after_fork(self) -> None:
        """In the child of a fork: calls of other threads go on elsewhere, and nothing is behind."""
        self._running.clear()
        self._wanted = self._preparation = None
        self._begun.clear()
        self.selection.after_fork()

    def withdraw(self, why: str) -> None:
        """The challenger that is tried can run no more."""
        self.selection.withdraw(why)
        self._follow()

    # --- while nothing is compared -----------------------------------------------------------------------------------

    def _counted(self, values: list[Any], number: int, contender: Contender) -> Sequence[Any]:
        begin = self._clock()
        lap = self._meter.lap()
        try:
            return contender.run(values)
        finally:
            took = self._clock() - begin
            if lap is not None:
                lap.stop()
            with self._lock:
                self._running[number] -= 1
                due = self._meter.count(took)
            if due and self._looking.acquire(blocking=False):
                try:
                    self._look()
                except Exception:
                    logger.warning("nothing more is tried for a graph", exc_info=True)
                    self.selection.stop()
                finally:
                    self._looking.release()

    def _look(self) -> None:
        """After a call: count those since the last look, and take the next step."""
        hold = why_not(self._now())
        if hold is Hold.CAPTURING:
            return
        with self._lock:
            counted = self._meter.taken()
        if counted is None:
            return
        now, (calls, seconds) = self._clock(), counted
        if calls:
            self.selection.ran(calls, seconds, now)
        if hold is not None and hold.for_good:
            self.selection.stop()
        elif self._preparation is None:
            self._wanted = self.selection.wanted(now)
            self._preparation = None if self._wanted is None else self._prepared(self._wanted)
        elif hold is None:
            self._load_if_ready(self._preparation)
        for challenger in self.selection.soon():
            self._begun[self.selection.number(challenger)] = self._prepared(challenger)
        self._follow()

    def _prepared(self, challenger: Challenger) -> Preparation:
        """Under way already, or begun now."""
        begun = self._begun.pop(self.selection.number(challenger), None)
        return self._preparer.prepare(challenger) if begun is None else begun

    def _load_if_ready(self, preparation: Preparation) -> None:
        assert self._wanted is not None, "it is prepared because it is wanted"
        wanted, standing = self._wanted, self.selection.standing()
        try:
            if not preparation.ready(standing.calls, standing.spent_s) or not self.selection.affords(
                preparation.load_s
            ):
                return
            begin = self._clock()
            loaded = preparation.load()
        except Exception as error:
            self._wanted = self._preparation = None
            self.selection.unbuilt(wanted, error_text(error), later=isinstance(error, NotNowError))
            return
        self._wanted = self._preparation = None
        self.selection.charge(self._clock() - begin)
        number = self.selection.number(wanted)
        with self._lock:
            self._contenders[number] = loaded
            if self.selection.built(wanted, loaded.elsewhere):
                return
            del self._contenders[number]
        loaded.release()

    # --- while a challenger is compared ------------------------------------------------------------------------------

    def _compared(self, values: list[Any]) -> Sequence[Any]:
        hold = why_not(self._now())
        if hold is not None and hold.for_good:
            self.selection.stop()
        symbols = () if self._size_of_call is None else (self._size_of_call(values),)
        with self._lock:
            lap = None if self._watch is None else self._watch.begin()
            stream = 0 if lap is None else lap.stream
            ticket = self.selection.begin(self._clock(), symbols, stream, hold)
            self._running[ticket.contender] += 1
            contender = self._contenders[ticket.contender]
            champion = self._contenders[self.selection.champion]
        error = ""
        try:
            if contender is champion or ticket.tries >= GUARDED:
                return contender.run(values)
            answer = guarded(contender.run, champion.run, values, contender.changes)
            error = "" if answer.error is None else error_text(answer.error)
            return answer.results
        except Exception as raised:
            error = error_text(raised)
            raise
        finally:
            if lap is not None:
                lap.stop()
            self._ended(ticket, error or contender.fault(), lap)

    def _ended(self, ticket: Ticket, error: str, lap: Lap | None) -> None:
        self.selection.end(ticket, self._clock(), error, lap)
        with self._lock:
            self._running[ticket.contender] -= 1
        self._follow()

    def _follow(self) -> None:
        """Let go of programs that lost, and see whether anything is compared now."""
        with self._lock:
            news = self.selection.news()
            self._news.extend(news)
            self._lost.update(happened.lost for happened in news)
            gone = [number for number in self._lost if self._running[number] <= 0]
            self._lost.difference_update(gone)
            released = [self._contenders.pop(number) for number in gone if number in self._contenders]
            number = self.selection.champion
            self._seat = None if self.selection.trying else (number, self._contenders[number])
        for contender in released:
            contender.release()
        self.has_news = bool(self._news) or self.over


def error_text(error: Exception) -> str:
    """What a program raised, as events tell it."""
    return f"{type(error).__name__}: {error}"
