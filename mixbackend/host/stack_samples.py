"""What the threads of this process do, looked at every few milliseconds.

Place: below what wants to know where a first call spends its time: reports, and workers of benchmarks. Output:
``Sample`` values; their seconds by stack, and collapsed stacks for flame graphs.
Method: a thread wakes up, walks the frames of the main thread, and counts the time since it last did for them. Where
the main thread waits for others, the first of the others that works counts instead: a pool that works with two threads
is one stretch of waiting for its caller.
Invariants: nothing is patched; calls inside of C are not seen, they count for the Python that made them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import FrameType

PERIOD_S = 0.004

_WAITING = frozenset({("threading.py", "wait"), ("_base.py", "result"), ("thread.py", "_worker"), ("queue.py", "get")})
"""File and function of the innermost frame of a thread that waits for another one, or for work."""


@dataclass(frozen=True)
class Frame:
    """A function on a stack."""

    file: str
    function: str

    @property
    def place(self) -> str:
        """Folder, file and function, in short."""
        return f"{'/'.join(self.file.split('/')[-2:])}:{self.function}"


@dataclass(frozen=True)
class Sample:
    """A stretch of time and the stack it counts for, outermost frame first."""

    seconds: float
    stack: tuple[Frame, ...]


class Sampler:
    """Samples from ``start`` to ``stop``; the process that is sampled has one such thread."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    @property
    def samples(self) -> Sequence[Sample]:
        """What was seen so far."""
        return self._samples

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> Sequence[Sample]:
        """End, and say what was seen.

        Raises:
            RuntimeError: it ended before, so that time is missing.
        """
        self._end()
        if self._failure is not None:
            raise RuntimeError("stacks were not sampled to the end") from self._failure
        return self._samples

    def _end(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:  # it is raised at the end, in the thread that waits
            self._failure = error

    def _sample(self) -> None:
        before = time.perf_counter()
        while not self._stopped.wait(PERIOD_S):
            frames = sys._current_frames()
            frames.pop(threading.get_ident(), None)
            stack = working_stack(frames.pop(self._main, None), frames.values())
            now = time.perf_counter()
            self._samples.append(Sample(now - before, stack))
            before = now


def working_stack(main: FrameType | None, others: Iterable[FrameType]) -> tuple[Frame, ...]:
    """The stack of the main thread; where it waits, of the first other that works."""
    mine = _stack(main)
    if not _waits(mine):
        return mine
    return next((stack for stack in map(_stack, others) if not _waits(stack)), mine)


def seconds_by_stack(samples: Iterable[Sample]) -> dict[tuple[str, ...], float]:
    """Seconds of each stack of functions, outermost first, without the outer frames that all have."""
    taken = [sample for sample in samples if sample.stack]
    levels = zip(*[sample.stack for sample in taken], strict=False)
    shared = sum(1 for _ in takewhile(lambda frames: len(set(frames)) == 1, levels))
    found: dict[tuple[str, ...], float] = {}
    for sample in taken:
        stack = tuple(frame.place for frame in sample.stack[shared:])
        found[stack] = found.get(stack, 0.0) + sample.seconds
    return found


def collapsed(samples: Iterable[Sample]) -> str:
    """One line per stack with its milliseconds: what flame graph programs read."""
    counted: Counter[str] = Counter()
    for sample in samples:
        counted[";".join(frame.place for frame in sample.stack)] += max(1, round(1000.0 * sample.seconds))
    return "".join(f"{stack} {milliseconds}\n" for stack, milliseconds in sorted(counted.items()) if stack)


def _stack(frame: FrameType | None) -> tuple[Frame, ...]:
    found: list[Frame] = []
    while frame is not None:
        found.append(Frame(frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))


def _waits(stack: Sequence[Frame]) -> bool:
    if not stack:
        return True
    return (stack[-1].file.rsplit("/", 1)[-1], stack[-1].function) in _WAITING
