"""Children that write until they are killed, or that do one thing as somebody else."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator

Acknowledge = Callable[[int], None]


class Writer:
    """A forked process that does numbered work and says so after each piece; it ends when it is killed.

    Args:
        work: does one piece of work; what it returned from is acknowledged.
        numbers: of the pieces.
    """

    def __init__(self, work: Callable[[int], None], numbers: Iterable[int]) -> None:
        self._answers, told = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(self._answers)
            _write(work, numbers, told)
        os.close(told)

    def kill(self) -> list[int]:
        """End it in the middle of whatever it does; the numbers of what it had acknowledged."""
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        data = b""
        while piece := os.read(self._answers, 1 << 16):
            data += piece
        os.close(self._answers)
        # A number that was cut off in the middle was not told.
        return [int(line) for line in data.split(b"\n")[:-1]]


def _write(work: Callable[[int], None], numbers: Iterable[int], told: int) -> None:
    try:
        for number in numbers:
            work(number)
            os.write(told, b"%d\n" % number)
        signal.pause()
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(3)


def sleep_somewhat(chance: random.Random, longest_s: float) -> None:
    """Wait for a random while: often very short, since much happens at the beginning."""
    time.sleep(longest_s * chance.random() ** 2)


def rounds(least: int, enough: Callable[[], bool]) -> Iterator[int]:
    """Number the rounds of a test: as many as are asked for, and more on a machine on which they got little done."""
    for number in itertools.count():
        if number >= least and enough():
            return
        yield number


def status_of(work: Callable[[], object], user: int | None = None) -> int:
    """Run something in a fork, as another user if asked; 0 if it returned, 1 if it raised."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            work()
            status = 0
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
