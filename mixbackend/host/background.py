"""Work behind the user's calls: what is given here is done by other processes, at lowest priority and within a budget.

Place: the door to ``behind_governor`` and its workers; code that has something to prepare for later calls gives it
here.
Input: jobs as values, and what the calls of their entries came to. Output: answers, when they are asked for.
Invariants: no thread of this process works or wakes up for it, and no question waits: what runs here is a write to a
pipe and a read that does not block, a few times in a second. No job begins before its entry has paid for it, except in
a warm-up (``behind_budget``). A fork has nothing behind; it may give jobs of its own. A governor knows what was used of
the budget, so it stays: the end of the process kills it and what is behind it, and waits at most a fifth of a second
for that. Ctrl-C ends the user's call alone. Nothing is unpickled.
Non-goals: what the jobs are; loading what they made.
"""

from __future__ import annotations

import atexit
import itertools
import os
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mixbackend.backends.common import forks
from mixbackend.host.behind_budget import Figures, Limits, WorkBehind
from mixbackend.host.behind_connection import GovernorProcess, Pipe
from mixbackend.host.behind_orders import UNPAID
from mixbackend.host.warm_up import WarmUp

SWITCH = "MIXBACKEND_BACKGROUND"
"""Set to ``off`` or ``0``, this environment variable forbids work behind, whatever the configuration says."""

_ASK_EVERY_S = 0.02
_TELL_EVERY_S = 0.25


def allowed_here() -> bool:
    """Whether the environment and the system let anything be done behind."""
    return os.name == "posix" and os.environ.get(SWITCH, "").lower() not in ("0", "off")


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do in another process.

    Attributes:
        work: ``module:function``, which is called with ``data`` as named arguments.
        data: as JSON has it.
        entry: the entry that pays for it with its calls.
    """

    work: str
    data: Mapping[str, Any]
    entry: str


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a job.

    Attributes:
        number: what ``submit`` gave for it.
        status: ``pass``, or ``failed``, ``crash``, ``timeout``, ``out_of_memory``, ``budget``, ``refused``.
        detail: why, in words.
        result: what the function returned.
    """

    number: int
    status: str
    detail: str = ""
    result: Any = None


@dataclass
class _Entry:
    figures: Figures = field(default_factory=lambda: Figures(0, 0.0))
    told_at: float = 0.0
    waiting: list[tuple[int, Job]] = field(default_factory=list)


class Background:
    """See the module's docstring.

    Args:
        limits: what this process may have behind; ``None`` for nothing at all.
        lock: names the file that the one builder of the cache folder holds, and makes its folder; asked when the first
            job begins.
        start: starts a governor.
        clock: seconds.
        warm_up: while it goes on, nothing has to be paid for.
    """

    def __init__(
        self,
        limits: Limits | None,
        lock: Callable[[], Path],
        start: Callable[[Limits, Path], Pipe] = GovernorProcess,
        clock: Callable[[], float] = time.monotonic,
        warm_up: WarmUp | None = None,
    ) -> None:
        self.warm_up = warm_up or WarmUp()
        self._limits, self._lock, self._start, self._clock = limits, lock, start, clock
        self._numbers = itertools.count(1)
        self._guard = forks.reentrant_lock()
        self._ended_s = 0.0
        """Used under governors that ended."""
        self._empty()
        forks.follow(self)
        _all.add(self)

    def _empty(self) -> None:
        self._governor: Pipe | None = None
        self._entries: dict[str, _Entry] = {}
        self._behind: set[int] = set()
        self._answers: list[Done] = []
        self._asked_at = self._clock()
        self._used_s, self._state = 0.0, ""
        self._warm = False

    @property
    def on(self) -> bool:
        """Whether anything may be done behind."""
        return self._limits is not None and allowed_here()

    def submit(self, job: Job) -> int | None:
        """Do it behind, once its entry has paid for it; its number, or ``None`` where nothing is done behind."""
        if not self.on:
            return None
        with self._guard:
            number = next(self._numbers)
            entry = self._entries.setdefault(job.entry, _Entry())
            entry.waiting.append((number, job))
            self._begin(job.entry, entry)
            return number

    def paid(self, entry: str, figures: Figures) -> None:
        """Say what the calls of an entry came to so far; quick, may be said after every call."""
        known = self._entries.get(entry)
        if known is None:
            return
        known.figures = figures
        if self._may_begin(figures) and (known.waiting or self._clock() - known.told_at > _TELL_EVERY_S):
            with self._guard:
                self._begin(entry, known)

    def answer(self, number: int) -> Done | None:
        """What came of a job, ``None`` while it goes on; quick, may be asked after every call, and never waits.

        A job that was forgotten, by ``close`` or in the child of a fork, has crashed.
        """
        due = self._clock() - self._asked_at >= _ASK_EVERY_S
        if (not due and not self._answers) or not self._guard.acquire(blocking=False):
            return None
        try:
            if due:
                self._listen()
            found = next((done for done in self._answers if done.number == number), None)
            if found is not None:
                self._answers.remove(found)
            elif not self._knows(number):
                return Done(number, "crash", "the job was dropped")
            return found
        finally:
            self._guard.release()

    def _knows(self, number: int) -> bool:
        waiting = (known for entry in self._entries.values() for known, _ in entry.waiting)
        return number in self._behind or number in waiting

    def standing(self) -> WorkBehind:
        """What is behind at present, for reports."""
        unpaid = sum(len(entry.waiting) for entry in self._entries.values())
        budget_s = 0.0 if self._limits is None else self._limits.budget_s
        used_s = self._ended_s + self._used_s
        return WorkBehind(unpaid, len(self._behind), used_s, budget_s, self._state if self._behind else "")

    def settled(self, timeout_s: float) -> bool:
        """Wait until nothing is behind; whether that is so.

        What only further calls can pay for is not waited for.
        """
        end = self._clock() + timeout_s
        while True:
            with self._guard:
                self._listen()
                waits = self._state == UNPAID or not self._behind
                left = bool(self._behind) or any(entry.waiting for entry in self._entries.values())
            if waits:
                return not left
            if self._clock() >= end:
                return False
            time.sleep(_ASK_EVERY_S)

    def close(self) -> None:
        """End what is behind; jobs that were not done are forgotten."""
        with self._guard:
            governor = self._governor
            self._ended_s += self._used_s
            self._empty()
            if governor is not None:
                governor.end()

    def _begin(self, name: str, entry: _Entry) -> None:
        """Give what waits to the governor, if the calls have paid."""
        if not self._may_begin(entry.figures) or self._limits is None:
            return
        warm = self.warm_up.goes_on
        limits = self._limits.in_warm_up if warm else self._limits
        if self._governor is None:
            if not entry.waiting:
                return
            self._governor = self._start(limits, self._lock())
        elif warm is not self._warm:
            self._governor.tell({"limits": asdict(limits)})
        self._warm, entry.told_at = warm, self._clock()
        self._governor.tell({"allow": name, "seconds": entry.figures.allowance_s})
        for number, job in entry.waiting:
            self._behind.add(number)
            self._governor.tell({"job": number, **asdict(job)})
        entry.waiting.clear()

    def _may_begin(self, figures: Figures) -> bool:
        return figures.paid or self.warm_up.goes_on

    def _listen(self) -> None:
        self._asked_at = self._clock()
        if self._governor is None:
            return
        messages = self._governor.hear()
        if messages is None:
            self._governor.end()
            self._governor = None
            messages = [{"job": number, "status": "crash", "detail": "its governor ended"} for number in self._behind]
        for message in messages:
            if "job" in message:
                self._take(message)
            self._state = message.get("state", self._state)
            self._used_s = message.get("used_s", self._used_s)

    def _take(self, message: Mapping[str, Any]) -> None:
        if message["job"] not in self._behind:
            return
        self._behind.remove(message["job"])
        detail = message.get("detail", "")
        self._answers.append(Done(message["job"], message["status"], detail, message.get("result")))

    def after_fork(self) -> None:
        """In the child of a fork: what is behind belongs to the parent."""
        governor = self._governor
        self._ended_s = 0.0
        self._empty()
        if governor is not None:
            governor.leave()


_all: weakref.WeakSet[Background] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for background in list(_all):
        background.close()
