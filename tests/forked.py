"""Children of forks, and threads that do something meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

LONGEST_S = 20.0


def ended(child: int, seconds: float = LONGEST_S) -> int | None:
    """What a child returned, ``None`` if it did not end in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def in_fork(work: Callable[[], bool]) -> int | None:
    """What came of some work in a child: 0 if it was right."""
    child = os.fork()
    if child:
        return ended(child)
    try:
        os._exit(0 if work() else 1)
    finally:
        os._exit(2)


class Elsewhere:
    """A thread that does something until it is told to end, and says when it has begun."""

    def __init__(self, work: Callable[[threading.Event, threading.Event], None]) -> None:
        self._over, begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=work, args=(begun, self._over), daemon=True)
        self._thread.start()
        assert begun.wait(LONGEST_S)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LONGEST_S)
