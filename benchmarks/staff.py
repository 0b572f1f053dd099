"""Worker processes that stay for the next request: starting one takes longer than many a small model.

Place: between ``runner``, with threads that ask, and ``processes``. Input: requests that ``worker`` knows. Output:
answers.
Invariants: a request that fails costs only itself: its worker is ended, since a fault on a GPU spoils the process, and
if that had served others before, a fresh one is asked again, and its answer counts; what the first one said stays in
``beside_others``. No worker is asked when the time is over, and an answer that comes later is none. Safe to use from
several threads.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from types import TracebackType

from mixbackend.benchmarks.one_model.protocol import Request
from mixbackend.host.processes import Answer, Worker

LEAST_S = 15.0
"""A request is not begun with less time left."""
_SOUND = frozenset({"pass", "fail_accuracy", "eager_two_runs_differ", "load_failed"})
"""After these a worker can serve on."""


class OutOfTimeError(Exception):
    """The whole run's time is over; what was asked for has no answer."""


class Staff:
    """Workers of one module.

    Args:
        module: what they run.
        most: requests that one of them serves at most.
        threads: of each.
        variables: of their environment.
        end: when the time is over, by ``time.monotonic``.
    """

    def __init__(
        self,
        module: str,
        most: int = 1,
        threads: int = 0,
        variables: Mapping[str, str | None] | None = None,
        end: float = math.inf,
    ) -> None:
        self._module, self._most, self._threads = module, most, threads
        self._variables, self._end = variables, end
        self._lock = threading.Lock()
        self._idle: list[tuple[Worker, int]] = []

    def __enter__(self) -> Staff:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for worker, _ in idle:
            worker.close()

    def ask(self, request: Request, timeout_s: float) -> Answer:
        """One answer, with ``seconds`` from asking on.

        Raises:
            OutOfTimeError: the time is over, before or while the request was served.
        """
        with self._lock:
            worker, served = self._idle.pop() if self._idle else (None, 0)
        answer = self._ask(worker, served, request, timeout_s)
        if served == 0 or answer["status"] in _SOUND - {"fail_accuracy"}:
            return answer
        first = f"{answer['status']}: {answer.get('detail', '')}"
        return {**self._ask(None, 0, request, timeout_s), "beside_others": first}

    def _ask(self, worker: Worker | None, served: int, request: Request, timeout_s: float) -> Answer:
        begin = time.monotonic()
        left = self._end - begin
        if left < LEAST_S:
            if worker is not None:
                worker.close()
            raise OutOfTimeError
        wait = min(timeout_s, left)
        if worker is None:
            worker = Worker(request, self._module, self._threads, self._variables)
            answer = worker.answer(wait)
        else:
            answer = worker.tell(asdict(request), wait)
        self._keep_or_close(worker, served + 1, answer)
        if answer["status"] == "timeout" and left < timeout_s:
            raise OutOfTimeError
        return {**answer, "seconds": time.monotonic() - begin}

    def _keep_or_close(self, worker: Worker, served: int, answer: Answer) -> None:
        if answer["status"] not in _SOUND or served >= self._most:
            worker.close()
            return
        with self._lock:
            self._idle.append((worker, served))
