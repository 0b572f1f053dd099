"""The benchmark of pools of threads: its arithmetic, its worker, its command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mixbackend.benchmarks import threads
from mixbackend.benchmarks.commands import threads as bench_threads


class Stand(threads.ThreadsProcess):
    """Stands in for a worker process: a known time per part, slower in turns and where threads spin."""

    def __init__(self, parts: Sequence[str], environment: Mapping[str, str]) -> None:
        self.parts = [name for name in parts if name != "absent"]
        self.sleeps = environment.get("GOMP_SPINCOUNT") == "0"
        self.ready = {"problems": {"absent": "not installed"} if "absent" in parts else {}}

    def __enter__(self) -> Stand:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def required(self) -> Stand:
        assert len(self.parts) == 1 and not self.ready["problems"]
        return self

    def ask(self, calls: int, policy: bool) -> dict[str, Any]:
        first = 1.0 if len(self.parts) == 1 else 1.1 if policy else 5.0
        seconds = {"onednn": first, "codegen": 0.5 if self.sleeps else 0.25}
        return {
            "seconds": {name: [seconds[name]] * calls for name in self.parts},
            "policy": "on" if policy else "off",
        }


def test_time_in_turns_is_divided_by_the_faster_time_alone() -> None:
    outcomes, problems = threads.measure(2, 3, parts=("onednn", "codegen", "absent"), start=Stand)
    first, sleeping, without = outcomes
    assert problems == {"absent": "not installed"}
    assert [outcome.setting for outcome in outcomes] == list(threads.SETTINGS)
    assert (first.policy, sleeping.policy, without.policy) == ("on", "on", "off")
    assert first.ratio == pytest.approx(1.35 / 1.25) and first.own_ratio == pytest.approx(1.35 / 1.25)
    assert sleeping.ratio == pytest.approx(1.6 / 1.25) and sleeping.own_ratio == pytest.approx(1.6 / 1.5)
    assert without.ratio == pytest.approx(5.25 / 1.25)
    assert sleeping.alone_s == {"onednn": 1.0, "codegen": 0.5} and sleeping.ratio_spread == 0.0


def test_one_part_is_no_mixture() -> None:
    with pytest.raises(RuntimeError, match="not installed"):
        threads.measure(1, 1, parts=("onednn", "absent"), start=Stand)


def test_the_command_prints_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes, problems = threads.measure(1, 2, parts=("onednn", "codegen"), start=Stand)
    load = {"before": 0.5, "after": 0.25}
    bench_threads.show(outcomes, problems, load, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [row["bar"] for row in told["settings"]] == [1.15, 1.10, None]
    bench_threads.show(outcomes, problems, load, as_json=False)
    text = capsys.readouterr().out
    assert all(setting in text for setting in threads.SETTINGS) and "1000000 -> 1100000" in text


def test_a_worker_takes_turns() -> None:
    environment = threads.environment_of("imported first")
    with threads.ThreadsProcess(["torch", "onnxruntime"], environment) as worker:
        assert worker.required().ready["parts"] == {"torch": "torch", "onnxruntime": "onnxruntime"}
        for policy in (True, False):
            answer = worker.ask(2, policy=policy)
            assert {name: len(seconds) for name, seconds in answer["seconds"].items()} == {"torch": 2, "onnxruntime": 2}
            assert (answer["policy"] == "off") is not policy
    assert threads.environment_of("sleeping")["GOMP_SPINCOUNT"] == "0"
    assert "GOMP_SPINCOUNT" not in environment


def test_a_worker_that_dies_is_named() -> None:
    with pytest.raises(RuntimeError, match="unheard"):
        threads.ThreadsProcess(["unheard"], threads.environment_of("sleeping"))
