"""Rows that compile side by side and are timed one at a time, while all others stand still.

Place: below ``gpu`` and ``headline``. Input: names of rows, and how the process of each is started. Output: every row's
process as it ended, in the order in which they end.
Method: as many processes as there are slots compile at once. The one that is ready first is timed: until it is done,
every other process is stopped by a signal, so that processor and GPU serve no other process. Waiting for all others to
be ready would leave slots empty.
Invariants: a row that fails, or takes too long, costs only itself. No row is begun that has too little time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mixbackend.benchmarks.row_process import RowProcess

READY, TIMED = "ready", "timed"
"""Keys of the parts that say how far a row is."""

OVER = "the time of the run was over"
"""Why a row was not timed that had not taken its own time yet."""

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How long rows may take.

    Attributes:
        end: of everything, by ``time.monotonic``.
        least_s: a row is not begun with less left.
        row_s: for one row to be ready, without the time in which it stood still.
        timing_s: for timing it; granted to a row that is ready, even if everything's time is over.
    """

    end: float
    least_s: float
    row_s: float
    timing_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A row's process that is over.

    Attributes:
        process: what it told is in its ``parts``.
        failed: why it was not timed; empty if it was.
    """

    name: str
    process: RowProcess
    failed: str


@dataclass(slots=True)
class _Row:
    name: str
    slot: str
    process: RowProcess
    end: float


def run_rows(
    names: Sequence[str], slots: Sequence[str], start: Callable[[str, str], RowProcess], limits: PoolLimits
) -> Iterator[Ended]:
    """Run rows until all are done, or the time is over.

    Args:
        names: of the rows, in the order in which they are begun.
        slots: rows run side by side, one in each: the GPU that it shall see; a GPU may be there more than once.
        start: begins the process of a row on a GPU.
    """
    waiting, free = list(names), list(slots)
    at_work: list[_Row] = []
    try:
        while waiting or at_work:
            while waiting and free and limits.end - time.monotonic() > limits.least_s:
                name, slot = waiting.pop(0), free.pop(0)
                at_work.append(_Row(name, slot, start(name, slot), time.monotonic() + limits.row_s))
            if not at_work:
                return
            for row in list(at_work):
                failed = _finished(row, at_work, limits)
                if failed is not None:
                    at_work.remove(row)
                    free.append(row.slot)
                    row.process.end()
                    yield Ended(row.name, row.process, failed)
            time.sleep(_POLL_S)
    finally:
        for row in at_work:
            row.process.end()


def _finished(row: _Row, at_work: Sequence[_Row], limits: PoolLimits) -> str | None:
    """Why a row was not timed, empty if it was; ``None`` while it is at work."""
    process = row.process
    if not process.wait_for(lambda part: READY in part, 0.0):
        if process.wait(0.0):
            return f"exit status {process.code}"
        if time.monotonic() > row.end:
            return "not done in time"
        return OVER if time.monotonic() > limits.end else None
    with _still([other for other in at_work if other is not row]):
        process.go_on()
        timed = process.wait_for(lambda part: TIMED in part, limits.timing_s)
    if timed:
        return ""
    process.wait(0.0)
    return "not timed in time" if process.code is None else f"exit status {process.code}"


@contextlib.contextmanager
def _still(rows: Sequence[_Row]) -> Iterator[None]:
    """While these rows stand still; what that takes is not counted as theirs."""
    begin = time.monotonic()
    for row in rows:
        row.process.pause()
    try:
        yield
    finally:
        for row in rows:
            row.process.resume()
            row.end += time.monotonic() - begin
