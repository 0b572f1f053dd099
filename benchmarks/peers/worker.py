"""One peer in a process of its own: ``python -m mixbackend.benchmarks.peers.worker``.

Place: started by ``turns``; a crash, a hang or running out of memory here costs only this peer.
Input: one request as a JSON line on standard input (see ``request``); a peer then takes lines ``{"seconds": s}``.
Output: one JSON line each on standard output. Everything that libraries print goes to standard error.
Invariants: results are held against the reference at the first call, and in inference once more when warm, when code
for frozen weights has taken over.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mixbackend.benchmarks.machine_rates import probe_machine
from mixbackend.benchmarks.one_model.settle import settle
from mixbackend.benchmarks.one_model.worker import TaskFailedError, describe_error, failure_status
from mixbackend.benchmarks.peers import executors, machine, reference
from mixbackend.benchmarks.peers.models import PeerModel
from mixbackend.benchmarks.peers.parts import summarise_parts
from mixbackend.benchmarks.peers.request import PeerRequest, request_from_line
from mixbackend.benchmarks.peers.suite_models import find_model
from mixbackend.host.processes import Answer, begin_answering, limit_memory

Send = Callable[[Answer], None]

_WINDOW_CALLS = 5
_STEADY = 0.98
"""Warm: the fastest of the latest calls is not two percent faster than the fastest before them."""
_LEAST_CALLS = 2


def main() -> None:
    """Answer one request; see the module's docstring."""
    line, send = begin_answering()
    request = request_from_line(line)
    limit_memory(request.memory_bytes)
    if request.threads:
        torch.set_num_threads(request.threads)
    try:
        serve(request, find_model, send)
    except Exception as error:
        failure = TaskFailedError("failed", error)
        send({"status": failure_status(failure), "detail": describe_error(error)})


def serve(request: PeerRequest, find: Callable[[str], PeerModel], send: Send) -> None:
    """Do what a request asks, with models by their names."""
    if request.task == "calibrate":
        send({"status": "pass", "unsettled": probe_machine()})
    elif request.task == "machine":
        send({"status": "pass", **dataclasses.asdict(machine.measure_limits(request.case.dtype))})
    elif request.task == "reference":
        work = reference.make(find(request.case.model), request.case, Path(request.folder))
        send({"status": "pass", **dataclasses.asdict(work)})
    else:
        serve_peer(request, find(request.case.model), send)


def serve_peer(request: PeerRequest, model: PeerModel, send: Send) -> None:
    """Compile, compare, warm up, say so; then time slices until the input ends."""
    module, inputs = reference.load(model, request.case)
    known = reference.read(Path(request.folder))
    if not reference.is_alike(reference.digest(module, inputs), known["digest"]):
        raise ValueError("weights or inputs differ from the reference's: the model is not built alike in every process")
    kernels = _kernel_files()
    start = time.perf_counter()
    executor = _executor(request, model, module, inputs)
    produced = executor.run()
    first_call_s = time.perf_counter() - start
    new_kernels = _kernel_files() - kernels
    wrong = reference.mismatches(executor.results(produced), known, request.case)
    settled_s = settle(executor.run)
    calls, steady = warm_up(executor.run, request.warm_up_s)
    if request.guards == "skipped":
        torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)
    if request.case.phase == "inference":
        wrong += [f"when warm: {text}" for text in _again(executor, known, request)]
    send(
        {
            "status": "wrong" if wrong else "pass",
            "detail": "; ".join(wrong[:3]),
            "first_call_s": first_call_s,
            "settled_s": settled_s,
            "new_kernels": new_kernels,
            "warm_up": {"calls": calls, "steady": steady},
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "parts": summarise_parts(executor.report()),
        }
    )
    for line in sys.stdin:
        send(time_slice(executor.run, json.loads(line)["seconds"]))


def warm_up(
    run: Callable[[], Any], longest_s: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[int, bool]:
    """Call until it gets no faster, or for ``longest_s``: (calls, whether it is steady)."""
    start = clock()
    fastest, calls = math.inf, 0
    while clock() - start < longest_s:
        window = []
        for _ in range(_WINDOW_CALLS):
            begin = clock()
            run()
            window.append(clock() - begin)
        calls += len(window)
        if min(window) >= fastest * _STEADY:
            return calls, True
        fastest = min(fastest, *window)
    return calls, False


def time_slice(run: Callable[[], Any], seconds: float) -> Answer:
    """One call that brings the caches back, then timed calls for about ``seconds``."""
    run()
    timed: list[float] = []
    before = machine.Usage.now()
    while sum(timed) < seconds or len(timed) < _LEAST_CALLS:
        start = time.perf_counter()
        run()
        timed.append(time.perf_counter() - start)
    others = before.cores_of_others(machine.Usage.now())
    return {"status": "pass", "median_s": statistics.median(timed), "calls": len(timed), "cores_of_others": others}


def _executor(request: PeerRequest, model: PeerModel, module: Any, inputs: Any) -> executors.Executor:
    if request.case.phase == "training":
        return executors.training(request.peer, request.configuration, module, inputs, model.loss)
    threads = request.threads or torch.get_num_threads()
    return executors.inference(request.peer, request.configuration, module, inputs, threads)


def _again(executor: executors.Executor, known: Any, request: PeerRequest) -> list[str]:
    return reference.mismatches(executor.results(executor.run()), known, request.case)


def _kernel_files() -> int:
    """Libraries in the folder of inductor's kernels: none more after a first call means that it was warm."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return sum(1 for _ in Path(folder).rglob("*.so")) if folder else 0


if __name__ == "__main__":
    main()
