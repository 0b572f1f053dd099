"""Workers that stay: who is asked again, who is ended, and what a run's end does. The worker is stood in for."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from mixbackend.benchmarks import staff as staff_module
from mixbackend.benchmarks.one_model.protocol import Request
from mixbackend.benchmarks.staff import OutOfTimeError, Staff

_WORKER = """
import json, os, sys, time
served = 0
for line in sys.stdin:
    model = json.loads(line)["model"]
    served += 1
    if model == "dies" or (model == "dies with others" and served > 1):
        os.abort()
    if model == "hangs":
        time.sleep(60)
    status = "fail_accuracy" if model == "is wrong" else "failed" if model == "raises" else "pass"
    print(json.dumps({"status": status, "detail": model, "pid": os.getpid(), "served": served}), flush=True)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "stand_in_worker.py").write_text(_WORKER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return "stand_in_worker"


def asked(staff: Staff, model: str, timeout_s: float = 30.0) -> dict:
    return staff.ask(Request("accuracy", model, "inference"), timeout_s)


def test_a_worker_serves_as_many_as_it_may(module: str) -> None:
    with Staff(module, most=2) as staff:
        answers = [asked(staff, str(number)) for number in range(3)]
    assert [answer["served"] for answer in answers] == [1, 2, 1]
    assert answers[0]["pid"] == answers[1]["pid"] != answers[2]["pid"]
    assert all(answer["seconds"] > 0 for answer in answers)


@pytest.mark.parametrize(("model", "status"), [("dies", "crash"), ("raises", "failed"), ("hangs", "timeout")])
def test_a_failure_costs_only_itself(module: str, model: str, status: str) -> None:
    with Staff(module, most=9) as staff:
        first = asked(staff, "before")
        answer = asked(staff, model, 1.0 if model == "hangs" else 30.0)
        after = asked(staff, "after")
    assert answer["status"] == status
    assert answer["beside_others"].startswith(status)
    assert after["status"] == "pass"
    assert after["pid"] != first["pid"]


def test_what_fails_beside_others_is_asked_alone(module: str) -> None:
    with Staff(module, most=9) as staff:
        assert "beside_others" not in asked(staff, "before")
        answer = asked(staff, "dies with others")
    assert (answer["status"], answer["served"]) == ("pass", 1)
    assert answer["beside_others"].startswith("crash: signal SIGABRT")


def test_wrong_results_are_asked_alone_too_and_end_nobody(module: str) -> None:
    with Staff(module, most=9) as staff:
        asked(staff, "before")
        answer = asked(staff, "is wrong")
        assert answer["status"] == "fail_accuracy"
        assert answer["served"] == 1
        assert asked(staff, "after")["served"] == 2


def test_nobody_is_asked_when_the_time_is_over(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Staff(module, end=time.monotonic() + staff_module.LEAST_S - 1) as staff, pytest.raises(OutOfTimeError):
        asked(staff, "late")
    monkeypatch.setattr(staff_module, "LEAST_S", 0.0)
    begin = time.monotonic()
    with Staff(module, end=begin + 1) as staff, pytest.raises(OutOfTimeError):
        asked(staff, "hangs")
    assert time.monotonic() - begin < 20


def test_idle_workers_end_with_the_staff(module: str) -> None:
    with Staff(module, most=9) as staff:
        process = asked(staff, "any")["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_the_stand_in_reads_what_the_real_one_reads() -> None:
    assert json.loads(Request("accuracy", "m", "inference").to_line())["model"] == "m"
