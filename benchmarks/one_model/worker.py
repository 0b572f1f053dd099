"""One model in a process of its own: ``python -m mixbackend.benchmarks.one_model.worker``.

Place: started by ``processes``; a crash, a hang or running out of memory here costs only this model.
Input: a request as a JSON line on standard input (see ``protocol``); a speed worker then takes lines ``{"calls": n}``,
one for accuracy further requests, if ``staff`` keeps it. Output: one JSON line each on standard output. Everything that
libraries print goes to standard error.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from mixbackend.benchmarks.models.entry import Entry, Loaded
from mixbackend.benchmarks.models.registry import find
from mixbackend.benchmarks.one_model import steps
from mixbackend.benchmarks.one_model.expected import expected_of
from mixbackend.benchmarks.one_model.placements import summarise
from mixbackend.benchmarks.one_model.protocol import MIXTURE, PLAIN, Request, Status, request_from_line
from mixbackend.benchmarks.one_model.settle import settle
from mixbackend.host.processes import Answer, begin_answering, limit_memory

_WARM_CALLS = 3
_EXHAUSTED = ("can't allocate memory", "std::bad_alloc", "failed to map segment")
"""What torch, C++ and the loader of libraries say of memory that ran out."""
_INDUCTOR_MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"triton.cudagraphs": True},
    "max-autotune": {"max_autotune": True, "triton.cudagraphs": True},
}
"""As options: together with them, torch.compile takes no mode."""


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
        backward_inside: compile the whole of a training step; else its forward with the loss, as most programs do.
    """

    def __init__(self, entry: Entry, request: Request, exact_random_stream: bool, backward_inside: bool = True) -> None:
        self.seconds: list[float] = []
        self._mixture: Any = None
        made_of = (entry, request.phase, request.precision, request.device)
        if backward_inside or request.phase == "inference":
            self._step = self._compiled(steps.step_of(*made_of), request, exact_random_stream)
        else:
            forward = self._compiled(steps.forward_of(*made_of), request, exact_random_stream)
            self._step = steps.with_backward(forward)

    def _compiled(self, step: steps.Step, request: Request, exact_random_stream: bool) -> steps.Step:
        mode = None if request.mode == "default" else request.mode
        if request.backend == PLAIN:
            return step
        if request.backend == MIXTURE:
            import mixbackend

            self._mixture = mixbackend.auto(dict(request.configuration))
            return torch.compile(step, backend=self._mixture, mode=mode)
        if request.backend == "inductor":
            options = {**_INDUCTOR_MODES[request.mode], "fallback_random": exact_random_stream}
            return torch.compile(step, backend="inductor", options=options)
        return torch.compile(step, backend=request.backend)

    def __call__(self, *inputs: Any) -> Any:
        start = time.perf_counter()
        produced = self._step(*inputs)
        self.seconds.append(time.perf_counter() - start)
        return produced

    def placement(self) -> Answer:
        """Summary of the mixture's report; empty for other backends."""
        return summarise(self._mixture.report().to_dict()) if self._mixture is not None else {}


def main() -> None:
    """Answer one request after the other; see the module's docstring."""
    line, send = begin_answering()
    limit_memory(request_from_line(line).memory_bytes)
    while line:
        serve(request_from_line(line), send)
        _forget()
        line = sys.stdin.readline()


def serve(request: Request, send: Callable[[Answer], None]) -> None:
    """Do what a request asks."""
    work = check_accuracy if request.task == "accuracy" else serve_timings
    try:
        work(request, send)
    except TaskFailedError as failure:
        send({"status": failure_status(failure), "detail": describe_error(failure.error)})


def check_accuracy(request: Request, send: Callable[[Answer], None]) -> None:
    """Judge a backend's results on one model by upstream's rule."""
    entry, loaded = _load(request)
    calls = steps.CALLS if request.mode == "default" else steps.CALLS_WITH_GRAPHS
    expected, loaded = _attempt(
        "eager_failed",
        lambda: expected_of(entry, request.phase, request.precision, request.device, loaded, calls),
    )
    compiled = _attempt("failed", lambda: CompiledStep(entry, request, exact_random_stream=True))
    before = _accelerator_bytes(request.device)
    results = _attempt("failed", lambda: steps.run(entry, request.phase, loaded, compiled, calls))
    judgement = expected.judge(results)
    error, eager_error = expected.errors(results)
    send(
        {
            "status": judgement.verdict,
            "detail": "; ".join(map(str, judgement.mismatches[:3])),
            "mismatches": len(judgement.mismatches),
            "by_cosine": judgement.by_cosine,
            "error": error,
            "eager_error": eager_error,
            "first_call_s": compiled.seconds[0],
            "later_call_s": compiled.seconds[-1],
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "accelerator_bytes": _accelerator_peak(request.device) - before,
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
        _attempt("failed", call)
        first = step.seconds[0]
        _attempt("failed", lambda: settle(call, request.settle_s))
        for _ in range(_WARM_CALLS):
            _attempt("failed", call)
        send({"status": "pass", "first_call_s": first, "warm_s": min(step.seconds[1:]), "placement": step.placement()})
        for line in sys.stdin:
            step.seconds.clear()
            for _ in range(json.loads(line)["calls"]):
                call()
            send({"status": "pass", "seconds": step.seconds})


def _accelerator_bytes(device: str) -> int:
    """What tensors hold on a GPU; its peak is counted from here on. 0 on the processor."""
    if torch.device(device).type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _accelerator_peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if torch.device(device).type == "cuda" else 0


def _forget() -> None:
    """Let nothing of a request be left for the next."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


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
    exhausted = isinstance(failure.error, (MemoryError, torch.OutOfMemoryError)) or any(
        words in text for words in _EXHAUSTED
    )
    return "out_of_memory" if exhausted else failure.status


def describe_error(error: BaseException) -> str:
    """Type, message and place of an error on one line or few."""
    text = str(error).strip()
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {text[:1500]}{place}"


if __name__ == "__main__":
    main()
