"""One model in a process of its own: ``python -m mixbackend.benchmarks.worker``.

Place: started by ``processes``; a crash, a hang or running out of memory here costs only this model.
Input: one request per process as a JSON line on standard input (see ``protocol``); a speed worker then takes lines
``{"calls": n}``. Output: one JSON line each on standard output. Everything that libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from mixbackend.benchmarks import steps
from mixbackend.benchmarks.accuracy import judge, rule_for
from mixbackend.benchmarks.models import Entry, find
from mixbackend.benchmarks.models.entry import Loaded
from mixbackend.benchmarks.placements import summarise
from mixbackend.benchmarks.protocol import MIXTURE, PLAIN, Request, Status, request_from_line
from mixbackend.processes import Answer, begin_answering, limit_memory

_WARM_CALLS = 3


class TaskFailedError(Exception):
    """A part of the work raised; carries the status that says which part."""

    def __init__(self, status: Status, error: BaseException) -> None:
        self.status = status
        self.error = error
        super().__init__(str(error))


class CompiledStep:
    """A step under a backend, with the seconds of each of its calls.

    Args:
        entry, request: what to compile and with which backend.
        exact_random_stream: make inductor draw the random numbers that eager draws, so that results can be compared.
    """

    def __init__(self, entry: Entry, request: Request, exact_random_stream: bool) -> None:
        self.seconds: list[float] = []
        self._mixture: Any = None
        step = steps.step_of(entry, request.phase)
        if request.backend == PLAIN:
            self._step: steps.Step = step
        elif request.backend == MIXTURE:
            import mixbackend

            self._mixture = mixbackend.auto(dict(request.configuration))
            self._step = torch.compile(step, backend=self._mixture)
        else:
            options: Any = {"fallback_random": True} if exact_random_stream and request.backend == "inductor" else None
            self._step = torch.compile(step, backend=request.backend, options=options)

    def __call__(self, *inputs: Any) -> Any:
        start = time.perf_counter()
        produced = self._step(*inputs)
        self.seconds.append(time.perf_counter() - start)
        return produced

    def placement(self) -> Answer:
        """Summary of the mixture's report; empty for other backends."""
        return summarise(self._mixture.report().to_dict()) if self._mixture is not None else {}


def main() -> None:
    """Answer one request; see the module's docstring."""
    line, send = begin_answering()
    request = request_from_line(line)
    limit_memory(request.memory_bytes)
    work = check_accuracy if request.task == "accuracy" else serve_timings
    try:
        work(request, send)
    except TaskFailedError as failure:
        send({"status": failure_status(failure), "detail": describe_error(failure.error)})


def check_accuracy(request: Request, send: Callable[[Answer], None]) -> None:
    """Judge a backend's results on one model by upstream's rule."""
    entry, loaded = _load(request)
    torch.use_deterministic_algorithms(True, warn_only=True)
    step = steps.step_of(entry, request.phase)
    exact = steps.run_exact(entry, request.phase, loaded)
    first = _attempt("eager_failed", lambda: steps.run(entry, request.phase, loaded, step))
    second = _attempt("eager_failed", lambda: steps.run(entry, request.phase, loaded, step))
    compiled = _attempt("failed", lambda: CompiledStep(entry, request, exact_random_stream=True))
    results = _attempt("failed", lambda: steps.run(entry, request.phase, loaded, compiled))
    judgement = judge(first, second, results, exact, rule_for(entry.family, entry.name, request.phase))
    send(
        {
            "status": judgement.verdict,
            "detail": "; ".join(map(str, judgement.mismatches[:3])),
            "mismatches": len(judgement.mismatches),
            "by_cosine": judgement.by_cosine,
            "first_call_s": compiled.seconds[0],
            "later_call_s": compiled.seconds[-1],
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "placement": compiled.placement(),
        }
    )


def serve_timings(request: Request, send: Callable[[Answer], None]) -> None:
    """Compile and warm up, say so, then time as many calls as each line asks for, until the input ends."""
    entry, (module, args, kwargs) = _load(request)
    step = _attempt("failed", lambda: CompiledStep(entry, request, exact_random_stream=False))

    def call() -> None:
        module.zero_grad(set_to_none=True)
        step(module, args, kwargs)

    with torch.set_grad_enabled(request.phase == "training"):
        for _ in range(1 + _WARM_CALLS):
            _attempt("failed", call)
        first = step.seconds[0]
        send({"status": "pass", "first_call_s": first, "warm_s": min(step.seconds[1:]), "placement": step.placement()})
        for line in sys.stdin:
            step.seconds.clear()
            for _ in range(json.loads(line)["calls"]):
                call()
            send({"status": "pass", "seconds": step.seconds})


def _load(request: Request) -> tuple[Entry, Loaded]:
    def load() -> tuple[Entry, Loaded]:
        entry = find(request.model)
        judged = request.task == "accuracy" and not request.always_training_mode
        return entry, steps.load(entry, request.phase, request.device, always_training_mode=not judged)

    return _attempt("load_failed", load)


def _attempt(status: Status, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        raise TaskFailedError(status, error) from error


def failure_status(failure: TaskFailedError) -> Status:
    """The part that failed, or that memory ran out in it."""
    text = str(failure.error)
    exhausted = isinstance(failure.error, MemoryError) or "can't allocate memory" in text or "std::bad_alloc" in text
    return "out_of_memory" if exhausted else failure.status


def describe_error(error: BaseException) -> str:
    """Type, message and place of an error on one line or few."""
    text = str(error).strip()
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {text[:1500]}{place}"


if __name__ == "__main__":
    main()
