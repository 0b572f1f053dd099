"""Crew: processes that are asked about claims side by side; a crash or a hang costs one answer.

Place: above ``desk``. Input: requests, each answered once. Output: answers, in whatever order they come.
Invariants: every request has an answer; one that no process gave says ``crash``, ``timeout`` or ``out_of_memory``, with
the property that was being looked at; the next request goes to a fresh process. Without processes this one answers
itself.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from mixbackend.backends.common import forks
from mixbackend.certify.desk import Desk
from mixbackend.certify.source import Source
from mixbackend.contracts import MixbackendError
from mixbackend.host.asked_process import AskedProcess
from mixbackend.host.processes import Answer

_MODULE = "mixbackend.certify.worker"
_HINT = "--jobs 0 certifies in one process, where nothing guards against crashes"

Request = Mapping[str, Any]
Told = Callable[[int, Answer], None]
"""Gets the number of a request and its answer."""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What a process is started with.

    Attributes:
        source: of the backend.
        torchs: whether it will be asked about torch's samples, and may load them.
    """

    source: Source
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
        self._processes: list[AskedProcess] = []
        self._lock = forks.lock()
        self.fingerprints: set[str] = set()
        """What the processes say of the backend's."""
        if source is not None:
            request = WorkerRequest(source, torchs)
            self._processes = [AskedProcess(request, _MODULE, timeout_s, _HINT) for _ in range(jobs)]
        # The system ends a process with the thread that started it: these live as long as the crew.
        self._threads = ThreadPoolExecutor(jobs) if self._processes else None
        if self._threads is not None:
            # Libraries are loaded while this process thinks of what to ask.
            list(self._threads.map(AskedProcess.start, self._processes))

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
            list(self._threads.map(work, [partial(self._answer, process) for process in self._processes]))
        if failed:
            raise failed[0]

    def _answer(self, process: AskedProcess, request: Request) -> Answer:
        self.fingerprints.add(process.ready()["fingerprint"])
        return process.answer(request)

    def renew(self) -> None:
        """End all processes: what is asked next is asked of fresh ones."""
        for process in self._processes:
            process.close()

    def close(self) -> None:
        """End all processes for good."""
        self.renew()
        if self._threads is not None:
            self._threads.shutdown()
