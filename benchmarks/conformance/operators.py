"""All operator samples of some types, by processes side by side, until they are done or the time is over.

Place: between the command and ``operator_worker``. Output: records in a file, one for a few samples of one operator.
Resuming: what the file holds for this label is not run again; further samples of an operator are asked for when its
first ones have come, so that a run that ends early has seen some of every operator.
Invariants: a crash or a hang is narrowed down to one sample, which counts as wrong.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.benchmarks.conformance.operator_worker import MODULE, WorkerSetting
from mixbackend.benchmarks.results import Record, ResultFile, key_of
from mixbackend.host.processes import Answer, Worker

KIND = "opinfo 1"
"""Changes with the meaning of records."""

CONFIGURATION: Mapping[str, Any] = {"select": "off"}
"""Default but for comparing at the first call, which takes seconds for each of thousands of graphs."""

_SERVED_AT_MOST = 60
"""Requests of one process, so that what libraries keep does not add up."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some samples of one operator."""

    operator: str
    dtype: str
    first: int
    count: int

    def request(self) -> dict[str, Any]:
        """What a worker is told."""
        return {"operator": self.operator, "dtype": self.dtype, "first": self.first, "count": self.count}


@dataclass(frozen=True, slots=True)
class Options:
    """How a run goes.

    Attributes:
        jobs: processes side by side.
        chunk: samples asked for at once.
        samples: of each operator at most; 0 for all.
        limit_s: no further samples are begun after so many seconds.
        timeout_s: longest time of one request.
        label: which code the records belong to.
        memory_bytes: limit of each process.
    """

    jobs: int
    chunk: int
    samples: int
    limit_s: float
    timeout_s: float
    label: str
    memory_bytes: int = 0


def run(names: Sequence[tuple[str, str]], options: Options, file: ResultFile, show: Callable[[str], None]) -> bool:
    """Check operators, each given with a type; whether all of their samples have a record.

    Args:
        show: told a line of progress.
    """
    work = _Work(names, options, file, show)
    threads = [threading.Thread(target=work.go_on, daemon=True) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return not work.pieces


class _Work:
    """Pieces that wait; the threads take them in turn."""

    def __init__(
        self, names: Sequence[tuple[str, str]], options: Options, file: ResultFile, show: Callable[[str], None]
    ) -> None:
        self._options, self._file, self._show = options, file, show
        self._end = time.monotonic() + options.limit_s
        self._lock = threading.Condition()
        self._busy = 0
        self.pieces = collections.deque(
            piece for name, dtype in names for piece in self._missing(Piece(name, dtype, 0, self._size(0)))
        )

    def go_on(self) -> None:
        """One thread: a worker and what it is asked."""
        worker, served = None, 0
        while (piece := self._take()) is not None:
            if worker is None or served >= _SERVED_AT_MOST:
                if worker is not None:
                    worker.close()
                worker, served = Worker(WorkerSetting(CONFIGURATION, self._options.memory_bytes), MODULE, 1), 0
            answer = worker.tell(piece.request(), self._options.timeout_s)
            served += 1
            if answer["status"] != "pass":
                worker.close()
                worker = None
            self._keep(piece, answer)
        if worker is not None:
            worker.close()

    def _take(self) -> Piece | None:
        with self._lock:
            while not self.pieces and self._busy:
                self._lock.wait()
            if not self.pieces or time.monotonic() > self._end:
                return None
            self._busy += 1
            return self.pieces.popleft()

    def _keep(self, piece: Piece, answer: Answer) -> None:
        """Write a record, and ask for what comes next: single samples where a worker died."""
        with self._lock:
            self._busy -= 1
            self._file.append(self._record(piece, answer))
            self.pieces.extend(self._missing(piece))
            self._lock.notify_all()
            self._show(f"{len(self.pieces)} pieces wait; {piece.operator} {piece.dtype} #{piece.first}")

    def _record(self, piece: Piece, answer: Answer) -> Record:
        base = {"key": self._key(piece), "kind": KIND, "label": self._options.label, **piece.request()}
        if answer["status"] == "pass":
            return {**base, **answer}
        tally = {"right": 0, "stated": 0, "random": 0, "refused": 0, "wrong": 0, "compiled": 0}
        wrong = []
        if piece.count == 1:
            tally["wrong"] = 1
            problem = f"{answer['status']}: {answer.get('detail', '')[-300:]}"
            wrong = [{"sample": f"{piece.operator} #{piece.first}", "problem": problem, "control": "not run"}]
        # Several samples are asked for again one by one, which says which of them it was.
        return {**base, **answer, "tally": tally, "wrong": wrong, "repaired": [], "more": True}

    def _missing(self, piece: Piece) -> list[Piece]:
        """What has no record yet of this piece and those that come after it."""
        found = []
        record = self._file.get(self._key(piece))
        while record is not None:
            if record["status"] != "pass" and piece.count > 1:
                singles = [Piece(piece.operator, piece.dtype, piece.first + place, 1) for place in range(piece.count)]
                found += [single for single in singles if self._file.get(self._key(single)) is None]
            after = piece.first + piece.count
            following = Piece(piece.operator, piece.dtype, after, self._size(after))
            is_single = piece.count != self._size(piece.first)
            if not record["more"] or is_single or following.count < 1:
                return found
            piece, record = following, self._file.get(self._key(following))
        return [*found, piece]

    def _size(self, first: int) -> int:
        left = self._options.samples - first if self._options.samples else self._options.chunk
        return max(0, min(self._options.chunk, left))

    def _key(self, piece: Piece) -> str:
        return key_of(KIND, piece.operator, piece.dtype, "auto", piece.request(), self._options.label)
