"""Live calls: the calls of one entry while challengers are tried in them.

Place: between ``selection``, which says who runs a call, and whoever builds programs. Input: the champion,
challengers, a way to build one; the values of calls. Output: their results.
Method: each call is run once, by the program in turn. A challenger's first calls are copied for (``guarded``); the
champion answers what it raises there. Challengers are asked for after a call and come when they come; a program that
nobody will run any more is let go of once no call runs it.
Invariants: safe for threads. No lock is held while a program runs, is built or is let go of.
Non-goals: building; what an entry does once it is settled: its champion can run without this.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.execute.run_function import Run
from mixbackend.execute.state_restore import Changes
from mixbackend.select.live.challengers import Challenger
from mixbackend.select.live.guarded import GUARDED, guarded
from mixbackend.select.live.selection import Selection, Ticket
from mixbackend.select.live.standing import Happened
from mixbackend.select.live.steps import Situation, situation, why_not


@dataclass(frozen=True)
class Contender:
    """A program that can run the entry's calls.

    Attributes:
        run: runs the graph; empties the list.
        changes: what that changes.
        release: called when nobody will run it any more.
        fault: says what went wrong in its calls though they were answered; empty if nothing did.
    """

    run: Run
    changes: Changes
    release: Callable[[], None] = lambda: None
    fault: Callable[[], str] = lambda: ""


Built = Callable[[Contender | Exception], None]
"""To be told, in any thread, what became of building."""


class LiveCalls:
    """See the module's docstring.

    Args:
        champion: what runs first.
        selection: makes the selection of this entry, given who is to be told what became of challengers.
        build: builds a challenger, now or behind.
        emit: told what became of challengers.
        now: what the process is doing, for ``steps``.
        clock: seconds.
    """

    def __init__(
        self,
        champion: Contender,
        selection: Callable[[Callable[[Happened], None]], Selection],
        build: Callable[[Challenger, Built], None],
        emit: Callable[[Happened], None] = lambda happened: None,
        now: Callable[[], Situation] = situation,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.selection = selection(self._happened)
        self._build, self._emit, self._now, self._clock = build, emit, now, clock
        self._lock = threading.Lock()
        self._contenders = {0: champion}
        self._running: Counter[int] = Counter()
        self._lost: set[int] = set()
        self._news: list[Happened] = []

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        """Run a call; empties the list."""
        hold = why_not(self._now())
        if hold is not None and hold.for_good:
            self.selection.stop()
        with self._lock:
            ticket = self.selection.begin(self._clock(), hold=hold)
            self._running[ticket.contender] += 1
            contender = self._contenders[ticket.contender]
            champion = self._contenders[self.selection.champion]
        error = ""
        try:
            if contender is champion or ticket.tries >= GUARDED:
                return contender.run(values)
            answer = guarded(contender.run, champion.run, values, contender.changes)
            error = "" if answer.error is None else _text(answer.error)
            return answer.results
        except Exception as raised:
            error = _text(raised)
            raise
        finally:
            self._ended(ticket, error or contender.fault())

    @property
    def champion(self) -> Contender:
        """Who runs when nobody is tried."""
        with self._lock:
            return self._contenders[self.selection.champion]

    def _ended(self, ticket: Ticket, error: str) -> None:
        self.selection.end(ticket, self._clock(), error)
        with self._lock:
            self._running[ticket.contender] -= 1
            gone = [number for number in self._lost if not self._running[number]]
            self._lost.difference_update(gone)
            released = [self._contenders.pop(number) for number in gone if number in self._contenders]
            news, self._news = self._news, []
        for contender in released:
            contender.release()
        for happened in news:
            self._emit(happened)
        wanted = self.selection.wanted(self._clock())
        if wanted is not None:
            self._build(wanted, lambda found: self._came(wanted, found))

    def _came(self, challenger: Challenger, found: Contender | Exception) -> None:
        if isinstance(found, Exception):
            self.selection.unbuilt(challenger, _text(found))
            return
        number = self.selection.number(challenger)
        with self._lock:
            self._contenders[number] = found
            if self.selection.built(challenger):
                return
            del self._contenders[number]
        found.release()

    def _happened(self, happened: Happened) -> None:
        """Under the lock: in the call that follows."""
        self._lost.add(happened.lost)
        self._news.append(happened)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
