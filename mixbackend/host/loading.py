"""Loading: what was built behind becomes a program in a thread of this process, while calls go on.

Place: begun and asked by ``select.live.live_calls``. Input: a generator that does a part of the work before every
``yield``. Output: what it returns, or what it raises.
Method: on a processor a thread does all of it. Libraries let go of Python's lock while they open sessions and pack
weights. What is done in Python itself hands the lock over after ``TURN_S`` while something is loaded, instead of the
usual 5 ms: so long a call may wait each time that it takes the lock again. Full collections of garbage, which hold the
lock for as long as they take, wait.
The thread has the process's own priority: threads that a library starts for a session would keep a lower one for good,
and calls would wait for a thread of lower priority that holds Python's lock.
On GPUs parts are done between two calls: a thread may not allocate memory while another one captures a CUDA graph, and
has a device and a stream of its own.
Invariants: asking takes microseconds and waits for nothing. What is given up ends after the part that it is in. A fork
waits until no part is being done, ``FORK_WAITS_S`` at most: no lock that a part takes is held then. The child loads
nothing. The end of the process waits a fifth of a second at most.
Non-goals: what is loaded, and whether calls have paid for it.
Units: seconds.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from mixbackend.backends.common import forks
from mixbackend.host.full_collections import full_collections_later
from mixbackend.host.undisturbed import undisturbed

TURN_S = 1e-4
"""So long a thread may keep Python's lock while something is loaded, if another one wants it."""
LONGEST_S = 0.002
"""So long parts are done between two calls; the first one in any case."""
FORK_WAITS_S = 5.0
_EXIT_WAITS_S = 0.2
_LOOK_S = 0.001


class Releasable(Protocol):
    """What can be loaded."""

    def release(self) -> None:
        """Nobody wants it."""
        ...


Value = TypeVar("Value", bound=Releasable)
Steps = Generator[None, None, Value]


class GivenUpError(Exception):
    """It was not loaded to the end, with the reason."""


class Loading(Generic[Value]):
    """Something that is being loaded.

    Args:
        steps: does the work, with no mode of torch's on and gradients off.
    """

    def __init__(self, steps: Steps[Value]) -> None:
        self._steps: Steps[Value] | None = steps
        self._lock = forks.lock()
        self._value: Value | None = None
        self._error: Exception | None = None
        self._given_up = False
        self.took_s = 0.0
        """Of the user's time, once it is done."""
        self.done = False
        """Whether there is a value, or an error."""

    def between_calls(self) -> None:
        """A call has ended: do what must be done in its thread."""

    def take(self) -> Value:
        """What was loaded; it is done.

        Raises:
            Exception: what the work raised.
        """
        if self._error is not None:
            raise self._error
        assert self.done and self._value is not None, "it is taken once it is done"
        return self._value

    def give_up(self) -> None:
        """Nobody will take it: it ends after the part that it is in."""
        with self._lock:
            self._given_up, value = True, self._value
        if value is not None:
            value.release()

    def _part(self) -> None:
        """Do the next one."""
        assert self._steps is not None, "it is not done"
        try:
            if self._given_up:
                self._steps.close()
                raise GivenUpError("nobody wants it any more")
            next(self._steps)
        except StopIteration as over:
            self._end(over.value, None)
        except Exception as error:
            self._end(None, error)

    def _end(self, value: Value | None, error: Exception | None) -> None:
        self._steps = None
        with self._lock:
            self._value, self._error, unwanted = value, error, self._given_up
            self.done = True
        if unwanted and value is not None:
            value.release()


class BetweenCalls(Loading[Value]):
    """Does parts when a call has ended; see the module's docstring."""

    def between_calls(self) -> None:
        """See ``Loading``."""
        begin = now = time.perf_counter()
        with undisturbed():
            while not self.done and (now == begin or now - begin < LONGEST_S):
                self._part()
                now = time.perf_counter()
        self.took_s += now - begin

    def give_up(self) -> None:
        """See ``Loading``: no call will do a part of it any more."""
        super().give_up()
        if not self.done:
            self._part()


class BesideCalls(Loading[Value]):
    """Begins at once, in a thread; see the module's docstring.

    It takes the seconds of the processor that the thread takes, and processes that it waits for.
    """

    def __init__(self, steps: Steps[Value]) -> None:
        super().__init__(steps)
        _all.add(self)
        forks.follow(self)
        self._thread = threading.Thread(target=self._work, name="mixbackend-load", daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait until its thread has ended, for so long."""
        self._thread.join(seconds)

    def _work(self) -> None:
        self._begin = _processor_s()
        while not self.done:
            with _parts.being_done(), undisturbed(), full_collections_later(), _turns.short():
                while not self.done and not _parts.held:
                    self._part()

    def _end(self, value: Value | None, error: Exception | None) -> None:
        self.took_s = _processor_s() - self._begin
        super()._end(value, error)

    def after_fork(self) -> None:
        """In the child of a fork: its thread is the parent's."""
        if not self.done:
            self._error, self.done = GivenUpError("the process that loaded it was forked"), True


class _Parts:
    """What is being loaded in the process, one thing at a time, and the forks that wait for it."""

    def __init__(self) -> None:
        self._going_on = forks.long_lock()
        self._mine = threading.local()
        self.held = 0
        """How many forks wait until nothing is being done."""
        forks.follow(self)

    @contextmanager
    def being_done(self) -> Iterator[None]:
        """Nothing forks in here, and nothing is done here while something forks."""
        while self.held:
            time.sleep(_LOOK_S)
        with self._going_on:
            yield

    def hold(self) -> None:
        """Wait until nothing is being done; nothing is then, until ``go_on``."""
        self.held += 1
        self._mine.holds = self._going_on.acquire(timeout=FORK_WAITS_S)

    def go_on(self) -> None:
        """Everything goes on."""
        self.held -= 1
        if self._mine.holds:
            self._going_on.release()

    def after_fork(self) -> None:
        """In the child of a fork: what was going on is the parent's."""
        self.held = 0


class _Turns:
    """How often Python's lock changes hands while something is loaded."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._users = 0
        self._before = self._mine = 0.0
        forks.follow(self)

    @contextmanager
    def short(self) -> Iterator[None]:
        """As often as ``TURN_S`` says; what it was before is put back, unless somebody else has set it meanwhile."""
        with self._lock:
            if not self._users:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(TURN_S, self._before))
                self._mine = sys.getswitchinterval()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._put_back()

    def after_fork(self) -> None:
        """In the child of a fork: whoever wanted it is the parent's."""
        if self._users:
            self._users = 0
            self._put_back()

    def _put_back(self) -> None:
        if not self._users and sys.getswitchinterval() == self._mine:
            sys.setswitchinterval(self._before)


_all: weakref.WeakSet[BesideCalls[Any]] = weakref.WeakSet()
_parts = _Parts()
_turns = _Turns()


def _processor_s() -> float:
    of_children = os.times()
    return time.thread_time() + of_children.children_user + of_children.children_system


if hasattr(os, "register_at_fork"):
    # Behind that of ``forks``, and so before it: a part may need the locks that it takes.
    os.register_at_fork(before=_parts.hold, after_in_parent=_parts.go_on)


@atexit.register
def _end_all() -> None:
    end = time.monotonic() + _EXIT_WAITS_S
    going_on = [loading for loading in list(_all) if not loading.done]
    for loading in going_on:
        loading.give_up()
    for loading in going_on:
        loading.join(max(0.0, end - time.monotonic()))
