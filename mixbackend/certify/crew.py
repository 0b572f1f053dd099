"""Crew: processes that are asked about claims side by side; a crash or a hang costs one answer.

Place: above ``desk``. Input: requests, each answered once. Output: answers, in whatever order they come.
Invariants: every request has an answer; one that no process gave says ``crash``, ``timeout`` or ``out_of_memory``, with
the property that was being looked at; the next request goes to a fresh process. Without processes this one answers
itself.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from mixbackend.backends.common import forks
from mixbackend.certify.desk import Desk
from mixbackend.certify.source import Source
from mixbackend.contracts import MixbackendError
from mixbackend.host.processes import Answer, Worker

_MODULE = "mixbackend.certify.worker"
START_S = 240.0
"""Longest time that a process takes until it answers: libraries are loaded, and torch's database of operators."""

Request = Mapping[str, Any]
Told = Callable[[int, Answer], None]
"""Gets the number of a request and its answer."""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What a process is started with.

    Attributes:
        source: of the backend.
        path: places where its modules are found.
        torchs: whether it will be asked about torch's samples, and may load them.
    """

    source: Source
    path: tuple[str, ...]
    torchs: bool

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


class Crew:
    """See the module.

    Args:
        jobs: processes side by side; 0 where this process answers.
        timeout_s: longest time for each property of a case.
        source: of the backend, for other processes; ``None`` where none can find it.
        desk: answers in this process.
        torchs: whether samples of torch's database will be asked about.
    """

    def __init__(self, jobs: int, timeout_s: float, source: Source | None, desk: Desk, torchs: bool) -> None:
        self._desk = desk
        self._processes: list[_Process] = []
        self._lock = forks.lock()
        self.fingerprints: set[str] = set()
        """What the processes say of the backend's."""
        if source is not None:
            request = WorkerRequest(source, tuple(filter(None, sys.path)), torchs)
            self._processes = [_Process(request, timeout_s, self.fingerprints) for _ in range(jobs)]
        # The system ends a process with the thread that started it: these live as long as the crew.
        self._threads = ThreadPoolExecutor(jobs) if self._processes else None
        if self._threads is not None:
            # Libraries are loaded while this process thinks of what to ask.
            list(self._threads.map(_Process.start, self._processes))

    @property
    def isolated(self) -> bool:
        """Whether other processes answer."""
        return bool(self._processes)

    def ask(self, requests: Sequence[Request], told: Told, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Have requests answered, in order of their start; none is begun any more once ``goes_on`` says no.

        Raises:
            MixbackendError: a process cannot load the backend.
        """
        # What is about one unit goes to one process, which has traced it then.
        numbered = itertools.groupby(range(len(requests)), lambda number: requests[number]["unit"])
        groups = iter([list(numbers) for _, numbers in numbered])
        failed: list[MixbackendError] = []

        def work(answer: Callable[[Request], Answer]) -> None:
            while goes_on() and not failed:
                with self._lock:
                    group = next(groups, None)
                if group is None:
                    return
                for number in group:
                    if not goes_on():
                        return
                    try:
                        found = answer(requests[number])
                    except MixbackendError as error:
                        failed.append(error)
                        return
                    with self._lock:
                        told(number, found)

        if self._threads is None:
            work(lambda request: self._desk.answer(request, lambda name: None))
        else:
            list(self._threads.map(work, [process.answer for process in self._processes]))
        if failed:
            raise failed[0]

    def renew(self) -> None:
        """End all processes: what is asked next is asked of fresh ones."""
        for process in self._processes:
            process.close()

    def close(self) -> None:
        """End all processes for good."""
        self.renew()
        if self._threads is not None:
            self._threads.shutdown()


class _Process:
    """One worker, started anew when it has died."""

    def __init__(self, request: WorkerRequest, timeout_s: float, fingerprints: set[str]) -> None:
        self._request, self._timeout_s, self._fingerprints = request, timeout_s, fingerprints
        self._worker: Worker | None = None
        self._ready = False

    def start(self) -> None:
        """Begin to load libraries; returns at once."""
        if self._worker is None:
            self._worker = Worker(self._request, _MODULE, 1, {"PYTHONPATH": os.pathsep.join(self._request.path)})
            self._ready = False

    def _started(self) -> Worker:
        self.start()
        worker = self._worker
        assert worker is not None, "it was started"
        if not self._ready:
            told = worker.answer(START_S)
            if told["status"] != "ready":
                self.close()
                raise MixbackendError(
                    what=f"another process cannot load the backend: {told['status']}: {told.get('detail', '')}",
                    hint="--jobs 0 certifies in one process, where nothing guards against crashes",
                )
            self._fingerprints.add(told["fingerprint"])
            self._ready = True
        return worker

    def answer(self, request: Request) -> Answer:
        """The answer to one request."""
        worker = self._started()
        at = ""
        answer = worker.tell(request, START_S)
        while "status" not in answer:
            at = answer["at"]
            # From here on it is the backend that takes its time; before, torch traced the sample.
            answer = worker.answer(self._timeout_s)
        if answer["status"] in ("crash", "timeout", "out_of_memory"):
            self.close()
            return {**answer, "at": at}
        return answer

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
