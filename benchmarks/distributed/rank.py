"""One rank of a row of the distributed benchmark: a case under one peer, measured and held against one process.

Place: a process started by ``launch``, once for each rank. It imports what takes long, says so, waits for a line of
JSON on standard input (``Request``), and tells one line of JSON: what it found, or why it failed.
Method: the first step is timed by itself; then steps until the mixture is settled or its time is over; then blocks of
steps by the clock, each begun together by all ranks; then a few steps under the profiler; then the gradients of the
last step are gathered, and only then the reference is computed, which would take memory before.
Invariants: all ranks run equally many steps: what depends on clocks is decided by the first rank.
Units: seconds, but for what is called ms.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn

import mixbackend
from mixbackend.benchmarks.distributed import overlap
from mixbackend.benchmarks.distributed.cases import CASES, Case
from mixbackend.benchmarks.distributed.gradients import digest, errors, gradients
from mixbackend.benchmarks.distributed.parallel import Place, Training, barrier, reference, synchronise, training
from mixbackend.benchmarks.distributed.request import Request

READY = "ready"
"""Key of the line that says that everything is imported."""


def main() -> None:
    """Be one rank."""
    _tell({READY: True})
    line = sys.stdin.readline()
    if not line:
        return
    request = Request(**json.loads(line))
    try:
        found = _measured(request)
    except Exception as error:
        _tell({"rank": request.rank, "failed": f"{type(error).__name__}: {str(error)[:400]}"})
        raise
    _tell({"rank": request.rank, **found})
    # Both must be done with the other before either closes its connections.
    distributed.barrier()
    distributed.destroy_process_group()


def _tell(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def _measured(request: Request) -> dict[str, Any]:
    place, case = _join(request), CASES[request.size][request.case]
    ours = mixbackend.auto({"cache": {"dir": request.cache}}) if request.peer.startswith("mixture") else None
    before = torch.cuda.memory_allocated() if place.on_gpu else 0
    job = training(case, place, lambda module, whole: _compiled(module, whole, request.peer, ours))
    barrier(place)
    begun = time.perf_counter()
    job.step()
    synchronise(place)
    found: dict[str, Any] = {"first_s": round(time.perf_counter() - begun, 2)}
    found["settled"] = _settle(job, ours, place, request.settle_s)
    found["times_ms"] = _times(job, place, request)
    found |= _memory(job, place, before)
    found["overlap"] = _overlap(job, place)
    loss = job.step()
    found["loss"] = None if loss is None else float(loss)
    found |= _held(job, case, place)
    return found if ours is None else found | _told(ours)


def _join(request: Request) -> Place:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(request.port))
    limit = datetime.timedelta(seconds=request.limit_s)
    if request.gpu is None:
        # Ranks share the cores of this machine; torchrun would give each one thread.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // request.ranks))
        distributed.init_process_group("gloo", rank=request.rank, world_size=request.ranks, timeout=limit)
        return Place(request.rank, request.ranks, torch.device("cpu"))
    device = torch.device("cuda", request.gpu)
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", rank=request.rank, world_size=request.ranks, timeout=limit, device_id=device)
    return Place(request.rank, request.ranks, device)


def _compiled(module: nn.Module, whole: bool, peer: str, ours: Any) -> nn.Module:
    backend, _, mode = peer.partition(":")
    if backend == "eager":
        return module
    options: dict[str, Any] = {"mode": mode} if mode else {}
    return torch.compile(module, backend=ours or backend, fullgraph=whole, **options)  # type: ignore[return-value]


def _settle(job: Training, ours: Any, place: Place, limit_s: float) -> bool:
    """Run steps until every rank's mixture is settled; whether it was before the time was over."""
    end = time.monotonic() + limit_s
    for _ in range(3):
        job.step()
    while True:
        settled = ours is None or ours.settled(0.05)
        told = torch.tensor([float(not settled), float(time.monotonic() > end)], device=place.device)
        distributed.all_reduce(told, op=distributed.ReduceOp.MAX)
        unsettled, over = (bool(value) for value in told.tolist())
        if over or not unsettled:
            return not unsettled
        for _ in range(5):
            job.step()


def _times(job: Training, place: Place, request: Request) -> list[float]:
    """Milliseconds of a step, one figure a block."""
    one = _block(job, place, 2)
    steps = torch.tensor([max(2, int(request.block_s / max(one, 1e-6)))], device=place.device)
    distributed.broadcast(steps, 0)
    count = int(steps)
    return [round(1e3 * _block(job, place, count), 4) for _ in range(request.blocks)]


def _block(job: Training, place: Place, steps: int) -> float:
    barrier(place)
    begun = time.perf_counter()
    for _ in range(steps):
        job.step()
    synchronise(place)
    return (time.perf_counter() - begun) / steps


def _memory(job: Training, place: Place, before: int) -> dict[str, float]:
    """Gigabytes of this rank: at the peak of everything so far, and of a step."""
    if not place.on_gpu:
        return {}
    first = torch.cuda.max_memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    job.step()
    synchronise(place)
    step = torch.cuda.max_memory_allocated() - before
    return {"first_memory_gb": round(first / 1e9, 3), "memory_gb": round(step / 1e9, 3)}


def _overlap(job: Training, place: Place, steps: int = 3) -> dict[str, float] | None:
    if not place.on_gpu:
        return None
    if place.rank > 0:
        for _ in range(steps):
            job.step()
        return None
    return asdict(overlap.profiled(steps, job.step))


def _held(job: Training, case: Case, place: Place) -> dict[str, Any]:
    """The gradients against those of one process, and a digest of what each rank has."""
    found = gradients(job.module, copied=case.way in ("ddp", "tensor") and place.ranks > 1)
    copies = [item.whole for _, item in sorted(found.items()) if item.copied]
    loss, wanted = reference(case, place)
    relative = errors(found, wanted)
    whole = relative.pop("")
    worst = max(relative, key=lambda name: relative[name])
    return {
        "copies": digest(copies) if copies and place.ranks > 1 else None,
        "reference_loss": loss,
        "gradient_error": whole,
        "worst_error": relative[worst],
        "worst": worst,
    }


def _told(ours: Any) -> dict[str, Any]:
    """Where operators went, and what happened, by the mixture's report."""
    report = ours.report()
    ops = Counter(region.backend for graph in report.graphs for region in graph.plan.regions for _ in region.nodes)
    # What runs where; what a rank believes that to cost is its own.
    plans = [
        repr([(item.backend, item.nodes, item.copies, item.matches) for item in graph.plan.regions])
        for graph in report.graphs
    ]
    events = list(dict.fromkeys(str(event)[:300] for event in report.events))
    return {
        "graphs": len(plans),
        "ops": dict(ops),
        "plans": blake2b("\n".join(plans).encode(), digest_size=8).hexdigest(),
        "events": events[:12],
    }


if __name__ == "__main__":
    main()
