"""Serving: four threads on one compiled model, models in each thread, and spawned processes."""

from __future__ import annotations

import concurrent.futures as futures
import contextlib
import multiprocessing
import queue
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.fx import traceback

import mixbackend

from .held_against_eager import data, hold_report, hold_results


@pytest.fixture(autouse=True)
def _state_of_tracing() -> Iterator[None]:
    """Torch keeps the module that it traces in a variable of the process: threads that trace side by side leave each
    other's there, and nodes traced by later tests would name it."""
    yield
    traceback.current_meta, traceback.should_preserve_node_meta = {}, False


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.project = nn.LayerNorm(32), nn.Linear(32, 32)
        self.out = nn.Linear(32, 32)

    def forward(self, value):
        scores = self.project(self.norm(value))
        return value + self.out(torch.softmax(scores @ scores.transpose(-1, -2), -1) @ scores)


def _model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(*[_Block() for _ in range(3)]).eval().to(dtype)


def _references():
    """Requests of different lengths, with what eager and float64 answer."""
    requests = [data(torch.float32, 2, 4 + number % 3, 32, seed=number) for number in range(12)]
    plain, exact = _model(), _model(torch.float64)
    with torch.no_grad():
        return requests, [plain(item) for item in requests], [exact(item.double()) for item in requests]


def _serve(run, requests, together):
    together.wait()
    results = []
    for _ in range(5):
        with torch.no_grad():
            results += [run(request) for request in requests]
    return results


@pytest.mark.sampled(1)
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_four_threads_share_a_model(mixture, warm):
    requests, eager, exact = _references()
    run = torch.compile(_model(), backend=mixture)
    if warm:
        with torch.no_grad():
            for request in requests:
                run(request)
    together = threading.Barrier(4)
    with futures.ThreadPoolExecutor(4) as pool:
        answers = [item.result(200) for item in [pool.submit(_serve, run, requests, together) for _ in range(4)]]
    for results in answers:
        hold_results(results, eager * 5, exact * 5)
    hold_report(mixture)


@pytest.mark.nightly
def test_four_threads_with_models_of_their_own(mixture):
    requests, eager, exact = _references()
    together = threading.Barrier(4)
    runs = [torch.compile(_model(), backend=mixture) for _ in range(4)]
    with futures.ThreadPoolExecutor(4) as pool:
        answers = [item.result(200) for item in [pool.submit(_serve, run, requests, together) for run in runs]]
    for results in answers:
        hold_results(results, eager * 5, exact * 5)
    hold_report(mixture)


def _in_process(number, model, results):
    torch.set_num_threads(1)
    run = model if number else torch.compile(model, backend=mixbackend.auto())
    with torch.no_grad():
        # As numbers: a tensor's memory would go with the process that made it.
        results.put(run(data(torch.float32, 2, 5, 32)).tolist())


def _result_of(process, results):
    """What it puts there; a process that ends without a result is not waited for."""
    end = time.monotonic() + 200
    while process.is_alive() and time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            return results.get(timeout=0.5)
    return results.get(timeout=1)


@pytest.mark.parametrize(
    "compiled", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["a model", "a compiled model"]
)
def test_a_spawned_process_answers_as_eager_does(compiled):
    model = torch.compile(_model(), backend=mixbackend.auto()) if compiled else _model()
    if compiled:
        with torch.no_grad():
            model(data(torch.float32, 2, 5, 32))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_in_process, args=(int(compiled), model, results))
    process.start()
    found = torch.tensor(_result_of(process, results))
    process.join(60)
    value = data(torch.float32, 2, 5, 32)
    with torch.no_grad():
        hold_results([found], [_model()(value)], [_model(torch.float64)(value.double())])
    assert process.exitcode == 0
