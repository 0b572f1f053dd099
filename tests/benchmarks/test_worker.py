"""Worker processes for real: an answer, a time limit, a crash, memory running out."""

from __future__ import annotations

import os
import signal
import time

import pytest

from mixbackend.benchmarks.one_model.protocol import MODULE, Request
from mixbackend.benchmarks.one_model.timing import interleave
from mixbackend.host.processes import Worker, ask


@pytest.mark.nightly
def test_accuracy_of_a_compiled_training_step() -> None:
    answer = ask(Request("accuracy", "lennard_jones", "training", "aot_eager"), MODULE, 120, threads=1)
    assert answer["status"] == "pass", answer
    assert answer["first_call_s"] > answer["later_call_s"] > 0
    assert not answer["by_cosine"]


@pytest.mark.nightly
def test_an_unknown_model_and_backend_are_answers() -> None:
    assert ask(Request("accuracy", "nope", "inference", "eager"), MODULE, 120, threads=1)["status"] == "load_failed"
    answer = ask(Request("accuracy", "lennard_jones", "inference", "no_such_backend"), MODULE, 120, threads=1)
    assert answer["status"] == "failed"
    assert "no_such_backend" in answer["detail"]


def test_a_worker_that_takes_too_long_is_ended() -> None:
    start = time.perf_counter()
    answer = ask(Request("accuracy", "resnet18", "inference", "aot_eager"), MODULE, 0.3)
    assert answer["status"] == "timeout"
    assert time.perf_counter() - start < 10


@pytest.mark.nightly
def test_a_crash_is_an_answer() -> None:
    worker = Worker(Request("speed", "lennard_jones", "inference", "plain"), MODULE, threads=1)
    try:
        assert worker.answer(120)["status"] == "pass"
        os.kill(worker._process.pid, signal.SIGSEGV)
        answer = worker.time_calls(1, 30)
    finally:
        worker.close()
    assert answer["status"] == "crash"
    assert "SIGSEGV" in answer["detail"]


def test_running_out_of_memory_is_an_answer() -> None:
    request = Request("accuracy", "lennard_jones", "inference", "eager", memory_bytes=150_000_000)
    assert ask(request, MODULE, 120, threads=1)["status"] in ("out_of_memory", "crash")


def test_peers_take_turns() -> None:
    requests = {
        "eager": Request("speed", "lennard_jones", "inference", "plain"),
        "again": Request("speed", "lennard_jones", "inference", "plain"),
        "missing": Request("speed", "nope", "inference", "plain"),
    }
    timings = interleave(requests, rounds=2, timeout_s=120, threads=1)
    assert list(timings) == list(requests)
    assert timings["missing"].status == "load_failed"
    assert timings["missing"].rounds_s == ()
    for name in ("eager", "again"):
        assert len(timings[name].rounds_s) == 2
        assert 0 < timings[name].median_s < 1
    assert timings["eager"].first_call_s == pytest.approx(timings["eager"].to_dict()["first_call_s"])
