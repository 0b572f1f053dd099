"""Peers in turns: one works, all others are stopped.

Place: below the command. Input: requests. Output: a record per request, in their order.
Invariants: a peer that fails costs only itself; every other round runs in reversed order.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from mixbackend.benchmarks.decode.request import MODULE, DecodeRequest
from mixbackend.benchmarks.idle_threads import without_decisions
from mixbackend.benchmarks.one_model.timing import round_order
from mixbackend.host.processes import Answer, Worker

Say = Callable[[str], None]


def time_peers(
    requests: Sequence[DecodeRequest], rounds: int, seconds: float, limit_s: float, say: Say
) -> list[dict[str, Any]]:
    """Start all peers, one after the other, then let them take their turns.

    Args:
        requests: of one shape and precision.
        rounds, seconds: how often each takes its turn, and for how long.
        limit_s: for one answer.
        say: told what is being done.
    """
    with ExitStack() as stack:
        ready: dict[str, Answer] = {}
        workers: dict[str, Worker] = {}
        for request in requests:
            say(f"{request.peer}: starting")
            variables = _changed(without_decisions(os.environ))
            worker = Worker(request, MODULE, request.threads, variables)
            stack.callback(worker.close)
            ready[request.peer] = worker.answer(limit_s)
            if ready[request.peer]["status"] == "pass":
                worker.pause()
                workers[request.peer] = worker
            say(f"{request.peer}: {ready[request.peer].get('detail', '') or 'ready'}")
        slices: dict[str, list[Answer]] = {peer: [] for peer in workers}
        for number in range(rounds):
            for peer in round_order(list(workers), number):
                say(f"{peer}: round {number + 1} of {rounds}")
                slices[peer].append(_turn(workers[peer], seconds, limit_s))
    return [_record(request, ready[request.peer], slices.get(request.peer, [])) for request in requests]


def _changed(wanted: dict[str, str]) -> dict[str, str | None]:
    return {name: wanted.get(name) for name in (*os.environ, *wanted) if wanted.get(name) != os.environ.get(name)}


def _turn(worker: Worker, seconds: float, limit_s: float) -> Answer:
    worker.resume()
    answer = worker.tell({"seconds": seconds}, limit_s)
    worker.pause()
    return answer


def _record(request: DecodeRequest, ready: Answer, slices: Sequence[Answer]) -> dict[str, Any]:
    record: dict[str, Any] = {"peer": request.peer, "precision": request.precision, **ready}
    failed = next((answer for answer in slices if answer["status"] != "pass"), None)
    if ready["status"] != "pass" or failed is not None:
        return {**record, **(failed or {})}
    rounds_s = [answer["median_s"] for answer in slices]
    step_s = statistics.median(rounds_s)
    return {
        **record,
        "rounds_s": rounds_s,
        "step_ms": step_s * 1e3,
        "gb_per_s": ready["bytes_of_step"] / step_s / 1e9,
        "cores_of_others": statistics.median(answer["cores_of_others"] for answer in slices),
    }
