"""An asked process: a worker that answers requests one after the other, and is started anew when it has died.

Place: above ``host.processes``; certification and minification ask backends in such processes. Input: requests. Output:
answers, always with a ``status``; one that no process gave says ``crash``, ``timeout`` or ``out_of_memory``.
Protocol: the worker first says ``ready`` or ``failed``. Before an answer it may send ``{"at": name}`` any number of
times, which says what it is at from there on: that is in the answer where the process dies or hangs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mixbackend.contracts import MixbackendError
from mixbackend.host.processes import Answer, AnyRequest, Worker

START_S = 240.0
"""Longest time that a process takes until it answers: libraries are loaded, and torch's database of operators."""
DEAD = ("crash", "timeout", "out_of_memory")
"""What an answer's ``status`` says where the process has ended."""


class AskedProcess:
    """See the module.

    Args:
        request: what each process is started with.
        module: what is run.
        timeout_s: longest time from one line of an answer to the next.
        hint: what to do where the process cannot begin.
        threads: see ``Worker``.
    """

    def __init__(self, request: AnyRequest, module: str, timeout_s: float, hint: str, threads: int = 1) -> None:
        self._request, self._module, self._timeout_s = request, module, timeout_s
        self._hint, self._threads = hint, threads
        self._worker: Worker | None = None
        self._ready: Answer | None = None

    def start(self) -> None:
        """Begin to load libraries; returns at once."""
        if self._worker is None:
            path = os.pathsep.join(filter(None, sys.path))
            self._worker = Worker(self._request, self._module, self._threads, {"PYTHONPATH": path})
            self._ready = None

    def ready(self) -> Answer:
        """What the process said once it was ready.

        Raises:
            MixbackendError: it cannot begin.
        """
        self.start()
        assert self._worker is not None, "it was started"
        if self._ready is None:
            told = self._worker.answer(START_S)
            if told["status"] != "ready":
                self.close()
                what = f"another process cannot load the backend: {told['status']}: {told.get('detail', '')}"
                raise MixbackendError(what=what, hint=self._hint)
            self._ready = told
        return self._ready

    def answer(self, request: Mapping[str, Any], limits: Mapping[str, float] = MappingProxyType({})) -> Answer:
        """The answer to one request.

        Args:
            limits: longest times of their own, by what the process says that it is at.
        """
        self.ready()
        assert self._worker is not None, "it is ready"
        at = ""
        answer = self._worker.tell(request, START_S)
        while "status" not in answer:
            at = answer["at"]
            # From here on it is the backend that takes its time; before, the request was read.
            answer = self._worker.answer(limits.get(at, self._timeout_s))
        if answer["status"] in DEAD:
            self.close()
            return {**answer, "at": at}
        return answer

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
