"""A process with everything that it started: processor time, memory, stopping, going on, the end.

Place: under ``behind_governor``, which holds what works behind to its share, and the benchmark of it.
Input: the number of a process that leads its group. Output: seconds, bytes.
Invariants: processes that have ended meanwhile count with what their parents know of them. Reads what Linux tells in
``/proc``; where there is nothing, ``told`` is false, and callers count in another way.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and all that it started have used.

    Attributes:
        seconds: of all processors, those of ended children included.
        bytes: that are resident now; shared pages count for each process.
        told: whether the system said so.
    """

    seconds: float
    bytes: int
    told: bool


def usage(process: int) -> Usage:
    """Of a process and what it started."""
    seconds, held, told = 0.0, 0, False
    waiting = [process]
    while waiting:
        number = waiting.pop()
        try:
            times = _times(number)
            held += int(Path(f"/proc/{number}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            continue
        told = True
        seconds += sum(times)
        waiting += _children(number)
    return Usage(seconds, held, told)


def own_seconds(process: int) -> float | None:
    """Processor seconds that a process itself has used; ``None`` where the system does not tell."""
    try:
        return sum(_times(process)[:2])
    except (OSError, ValueError):
        return None


def _times(process: int) -> tuple[float, ...]:
    """Seconds in user and system mode, and both of the children that were waited for: fields 14 to 17 of proc(5)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return tuple(int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:15])


def _children(process: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def send(group: int, number: signal.Signals) -> None:
    """Send a signal to a whole group, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
