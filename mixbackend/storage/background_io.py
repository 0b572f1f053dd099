"""Background I/O: work of storage that nothing waits for, and calls that are waited for no longer than a limit.

Place: under the remote level of storage. Input: functions. Output: their effects, later; or their answers, in time.
Invariants: pending work is done in order by one thread, which ends when there is none; what waits is bounded in bytes;
at the end of the process it gets a few seconds. A call that hangs costs its time limit and one sleeping thread.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mixbackend.backends.common import forks

MOST_BYTES = 256_000_000
_AT_EXIT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    work: Callable[[], None]
    size: int


class BackgroundQueue:
    """See the module's docstring. Work must not raise.

    Args:
        most_bytes: of what waits.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._pending: deque[_Job] = deque()
        self._bytes = 0
        self._busy = False
        self._begun: float | None = None
        self._changed = threading.Condition(forks.lock())
        self._thread: threading.Thread | None = None
        _all.add(self)
        forks.follow(self)

    def add(self, name: str, work: Callable[[], None], size: int = 0) -> bool:
        """Do it later; whether there is room. Work of the same name that has not begun is not added twice."""
        with self._changed:
            if any(job.name == name for job in self._pending):
                return True
            if self._bytes + size > self._most_bytes:
                return False
            self._pending.append(_Job(name, work, size))
            self._bytes += size
            if self._thread is None:
                self._busy = True
                self._thread = threading.Thread(target=self._work, daemon=True, name="mixbackend-background-io")
                self._thread.start()
            return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is done; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

    def after_fork(self) -> None:
        """In the child of a fork: what was pending is its parent's to do."""
        self._changed = threading.Condition(forks.lock())
        self._pending.clear()
        self._bytes, self._busy, self._begun, self._thread = 0, False, None, None

    def stuck_s(self) -> float:
        """Seconds since the work that is being done was begun; 0 if there is none."""
        begun = self._begun
        return 0.0 if begun is None else time.monotonic() - begun

    def _work(self) -> None:
        while True:
            self._begun = None
            with self._changed:
                if not self._pending:
                    self._busy = False
                    self._thread = None
                    self._changed.notify_all()
                    return
                job = self._pending.popleft()
                self._bytes -= job.size
                self._begun = time.monotonic()
            job.work()


_all: weakref.WeakSet[BackgroundQueue] = weakref.WeakSet()


@atexit.register
def _finish_at_exit() -> None:
    finish(_AT_EXIT_S)


def finish(timeout_s: float) -> None:
    """Wait until nothing is pending anywhere in this process, but no longer than that."""
    end = time.monotonic() + timeout_s
    for background in list(_all):
        background.flush(max(0.0, end - time.monotonic()))


def within_time(timeout_s: float, work: Callable[[], Any]) -> Any:
    """What a function returns.

    Raises:
        TimeoutError: it took longer; it goes on, and its answer is dropped.
        Exception: whatever it raises.
    """
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((True, work()))
        except BaseException as error:  # it is raised where it is waited for
            answers.put((False, error))

    threading.Thread(target=run, daemon=True, name="mixbackend-within-time").start()
    try:
        done, answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
    if not done:
        raise answer
    return answer
