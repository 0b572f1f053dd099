"""One peer in a process of its own: ``python -m mixbackend.benchmarks.decode.worker``.

Place: started by ``turns``. Input: one request as a JSON line on standard input, then lines ``{"seconds": s}``.
Output: one JSON line each. Everything that libraries print goes to standard error.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch

from mixbackend.benchmarks.decode.request import DecodeRequest, request_from_line
from mixbackend.benchmarks.decode.sessions import Session, first_of, open_session
from mixbackend.benchmarks.one_model.settle import settle
from mixbackend.benchmarks.one_model.worker import describe_error
from mixbackend.benchmarks.peers.machine import Usage
from mixbackend.host.processes import Answer, begin_answering

_LEAST_STEPS = 4
_BLOCK = {"cpu": 1, "cuda": 20}
"""Steps that are timed together: a GPU is waited for after each block."""


def main() -> None:
    """Answer one request; see the module's docstring."""
    line, send = begin_answering()
    request = request_from_line(line)
    torch.set_num_threads(request.threads)
    try:
        session = open_session(request)
        send(_ready(session, request))
    except ModuleNotFoundError as error:
        send({"status": "missing", "detail": str(error)})
        return
    except Exception as error:
        send({"status": "failed", "detail": describe_error(error)})
        return
    for line in sys.stdin:
        send(_slice(session, json.loads(line)["seconds"], request))


def _ready(session: Session, request: DecodeRequest) -> Answer:
    begin = time.perf_counter()
    token = session.step(session.rewind())
    _wait(request)
    first_s = time.perf_counter() - begin
    session.rewind()
    left = request.capacity - request.context

    def step() -> None:
        nonlocal token, left
        if left == 0:
            token, left = session.rewind(), request.capacity - request.context
        token, left = session.step(token), left - 1
        _wait(request)

    settled_s = settle(step, request.settle_s)
    told = [session.rewind()]
    for _ in range(request.told - 1):
        told.append(session.step(told[-1]))
    answer: dict[str, Any] = {"first_step_s": first_s, "settled_s": settled_s, "tokens": list(map(first_of, told))}
    return {"status": "pass", "bytes_of_step": session.bytes_of_step, **answer}


def _slice(session: Session, seconds: float, request: DecodeRequest) -> Answer:
    """One step that brings the caches back, then timed blocks of steps for about ``seconds``."""
    block, room = _BLOCK[request.device], request.capacity - request.context
    token, left = session.step(session.rewind()), room - 1
    timed: list[float] = []
    _wait(request)
    before = Usage.now()
    while block * sum(timed) < seconds or len(timed) < _LEAST_STEPS:
        if left < block:
            token, left = session.step(session.rewind()), room - 1
            _wait(request)
        begin = time.perf_counter()
        for _ in range(block):
            token = session.step(token)
        _wait(request)
        timed.append((time.perf_counter() - begin) / block)
        left -= block
    others = before.cores_of_others(Usage.now())
    steps = block * len(timed)
    return {"status": "pass", "median_s": statistics.median(timed), "steps": steps, "cores_of_others": others}


def _wait(request: DecodeRequest) -> None:
    if request.device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
