"""What is timed when calls are compared."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mixbackend.compile import trial_worker as worker
from mixbackend.graph.trace import trace_region
from mixbackend.plan.choice import Choice
from mixbackend.select.calls import GAP_S, LEAST_CALLS, as_in_training, timed_calls
from mixbackend.select.request import TrialRequest
from mixbackend.select.values import write_values


def test_slow_calls_are_timed_twice() -> None:
    calls: list[int] = []
    assert len(timed_calls(lambda: calls.append(1), 0.0)) == len(calls) == LEAST_CALLS


def test_between_calls_no_thread_has_work_for_as_long_as_guards_take() -> None:
    begun: list[float] = []
    ended: list[float] = []

    def run() -> None:
        begun.append(time.perf_counter())
        time.sleep(0.001)
        ended.append(time.perf_counter())

    start = time.perf_counter()
    taken = timed_calls(run, 0.02)
    before = [start, *ended[:-1]]
    assert min(later - earlier for earlier, later in zip(before, begun, strict=True)) >= GAP_S
    # The gap is not part of what a call takes.
    assert all(taken_s < end - last for taken_s, last, end in zip(taken, before, ended, strict=True))


def test_calls_end_when_their_time_has_passed() -> None:
    """However short they are, what lies between them counts."""
    assert len(timed_calls(lambda: None, 0.02)) <= 0.02 / GAP_S + LEAST_CALLS


def test_in_training_torchs_threads_work_after_each_call() -> None:
    calls: list[int] = []
    call = as_in_training(lambda: calls.append(1))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    assert calls == [1]
    assert [event.count for event in profile.key_averages() if event.key == "aten::mul_"] == [1]


@pytest.mark.parametrize(("phase", "work"), [("inference", 0), ("forward", 1), ("backward", 1)])
def test_candidates_are_timed_as_their_graph_will_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, work: int
) -> None:
    value = torch.randn(4)
    region = trace_region(torch.ops.aten.relu.default, [value], phase=phase)
    request = TrialRequest(tmp_path, Choice(), 0)
    request.graph_file.write_text(region.text)
    request.config_file.write_text("{}")
    write_values(tmp_path, [value])
    stirred: list[int] = []
    monkeypatch.setattr(worker, "load_config", lambda _: None)
    monkeypatch.setattr(worker, "Mixture", lambda _: SimpleNamespace(compile_captured=_compile, report=_report))
    monkeypatch.setattr(worker, "as_in_training", lambda run: stirred.append(1) or run)
    _, run = worker._compiled(request)
    run()
    assert len(stirred) == work


def _compile(*_: object) -> object:
    return lambda values: [torch.relu(item) for item in values]


def _report() -> SimpleNamespace:
    return SimpleNamespace(events=())
