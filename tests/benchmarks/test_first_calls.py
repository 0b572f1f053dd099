"""First calls: processes are told apart by peer and state, samples by phase, and figures are added up."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from pathlib import Path

import pytest

import mixbackend.api
from mixbackend.benchmarks.commands import first_calls as command
from mixbackend.benchmarks.first_calls import measure as measuring
from mixbackend.benchmarks.first_calls.measure import FirstCalls, Options, measure
from mixbackend.benchmarks.first_calls.phases import PHASES, phase_of, seconds_by_phase
from mixbackend.host import stack_samples as sampling
from mixbackend.host.stack_samples import Frame, Sample, Sampler, collapsed, working_stack


def frames(*places: str) -> tuple[Frame, ...]:
    return tuple(Frame(*place.split(":")) for place in places)


@pytest.mark.parametrize(
    ("stack", "phase"),
    [
        (frames("/v/torch/__init__.py:compile", "<frozen importlib._bootstrap>:f", "/v/torch/a.py:<module>"), "torch"),
        (frames("/m/mixbackend/api.py:<module>", "<frozen importlib._bootstrap>:f", "/m/x/y.py:<module>"), "others"),
    ],
)
def test_imports_are_told_apart_by_the_innermost_module(stack: tuple[Frame, ...], phase: str) -> None:
    assert phase_of(stack) == f"import {phase}"


def test_the_innermost_known_frame_decides() -> None:
    outer = frames("/m/mixbackend/compile/build.py:build")
    assert phase_of(outer) == "lowering"
    assert phase_of((*outer, *frames("/m/partitioner/search.py:f", "/usr/lib/python3/heapq.py:g"))) == "planning"
    assert phase_of((*outer, *frames("/m/backends/codegen/targets/cpp/build.py:compile_object"))) == "g++"
    assert phase_of((*outer, *frames("/m/backends/codegen/targets/cpp/build.py:_open"))) == "load"
    assert phase_of(frames("/elsewhere/user.py:main")) == "rest"


def test_what_candidates_compute_is_comparing() -> None:
    run = frames("<mixbackend inference-0>:run")
    assert phase_of(run) == "first run"
    assert phase_of((*frames("/m/mixbackend/select/turns.py:take_turns"), *run)) == "comparing"


def test_seconds_add_up() -> None:
    stack = frames("/m/partitioner/search.py:f")
    samples = [Sample(0.25, stack), Sample(0.5, stack), Sample(1.0, ())]
    seconds = seconds_by_phase(samples)
    assert seconds["planning"] == 0.75 and seconds["rest"] == 1.0 and tuple(seconds) == PHASES
    assert collapsed(samples) == "partitioner/search.py:f 750\n"


def test_a_sampler_sees_what_the_main_thread_does() -> None:
    def busy() -> None:
        end = time.perf_counter() + 0.2
        while time.perf_counter() < end:
            pass

    sampler = Sampler()
    sampler.start()
    busy()
    samples = sampler.stop()
    seen = sum(sample.seconds for sample in samples if any(frame.function == "busy" for frame in sample.stack))
    assert seen > 0.1


def test_a_sampler_that_ended_early_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> tuple[Frame, ...]:
        raise ValueError("no stack")

    monkeypatch.setattr(sampling, "working_stack", broken)
    sampler = Sampler()
    sampler.start()
    time.sleep(0.05)
    with pytest.raises(RuntimeError, match="to the end"):
        sampler.stop()


def test_where_the_main_thread_waits_another_counts() -> None:
    begun, ended = threading.Event(), threading.Event()

    def works() -> None:
        begun.set()
        while not ended.is_set():
            pass

    def waits() -> None:
        ended.wait()

    threads = [threading.Thread(target=works), threading.Thread(target=waits)]
    for thread in threads:
        thread.start()
    begun.wait()
    try:
        for _ in range(1000):
            every = sys._current_frames()
            stack = working_stack(every[threads[1].ident or 0], [every[threads[0].ident or 0]])
            if any(frame.function == "works" for frame in stack):
                return
        pytest.fail("the thread that works was not seen")
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.nightly
def test_a_process_tells_steps_and_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PEERS", ("aot_eager", "mixture"))
    options = Options(rounds=1, backends=("eager",), flame_graphs=tmp_path)
    (row,) = measure(["mlp"], "inference", options)
    assert not row.problems
    assert set(row.seconds) == {f"{peer} {state}" for peer in ("aot_eager", "mixture") for state in ("cold", "second")}
    for steps in row.seconds.values():
        assert 0.0 < steps["call_s"] < steps["process_s"]
    assert row.phases["cold"]["import torch"] > 0.1
    assert "mixbackend" in (tmp_path / "mlp-inference-second.txt").read_text()


def test_our_modules_are_compiled_beforehand_as_installing_does() -> None:
    code = Path(importlib.util.cache_from_source(mixbackend.api.__file__))
    code.unlink(missing_ok=True)
    assert measure([], "inference", Options()) == []
    assert code.exists()


@pytest.mark.nightly  # processes that wait for their time limit
def test_what_fails_is_a_problem_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PEERS", ("aot_eager",))
    (row,) = measure(["no_such_model"], "inference", Options(rounds=1))
    assert "no_such_model" in row.problems["aot_eager cold"] and not row.seconds


def test_the_summary_holds_us_against_the_peers() -> None:
    figures = {"aot_eager cold": 2.0, "inductor cold": 10.0, "mixture cold": 4.0, "mixture second": 3.0}
    seconds = {name: {"process_s": value} for name, value in figures.items()}
    summary = command.summary([FirstCalls("m", "inference", seconds, {}, problems={"inductor second": "crash"})])
    assert summary["cold over inductor's"] == pytest.approx(0.4)
    assert summary["cold, seconds beyond aot_eager"] == {"median": 2.0, "worst": 2.0}
    assert summary["problems"] == 1 and "second, seconds beyond aot_eager" not in summary
