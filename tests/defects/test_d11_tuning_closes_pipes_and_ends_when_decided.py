"""D11: worker processes leave no pipe open, and a tuning race ends when more turns would change nothing."""

from __future__ import annotations

import gc
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mixbackend.backends.tensorrt.builders import DONE, Builder
from mixbackend.host.processes import Worker
from mixbackend.plan.choice import Choice
from mixbackend.select.decision import MEASURED, decide
from mixbackend.select.race import ROUNDS, Candidate, race

ANSWERS = 'import sys; print(\'{"status": "pass"}\', flush=True); sys.stdin.read()'
BUILDS = f"import sys\nfor line in sys.stdin: print({DONE!r}, flush=True)"


@dataclass
class Request:
    def to_line(self) -> str:
        return "a request"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes modules that a process can run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return make


def _unclosed(run: Any) -> list[str]:
    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        run()
        gc.collect()
    return [str(item.message) for item in told if issubclass(item.category, ResourceWarning)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("answered", [True, False])
def test_a_worker_closes_its_pipes(module: Any, answered: bool) -> None:
    name = module("answers", ANSWERS)

    def run() -> None:
        worker = Worker(Request(), name)
        if answered:
            assert worker.answer(60)["status"] == "pass"
        worker.close()

    assert _unclosed(run) == []


def test_a_process_that_builds_closes_its_pipes(module: Any, tmp_path: Path) -> None:
    name = module("builds", BUILDS)

    def run() -> None:
        builder = Builder(name)
        builder.build(tmp_path, 60)
        builder.end()

    assert _unclosed(run) == []


class Runner:
    """A candidate that takes as long as it is told, and counts its turns."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds
        self.turns = 0

    def wait(self, timeout_s: float) -> bool:
        return True

    def answer(self, timeout_s: float) -> dict[str, Any]:
        return {"status": "pass"}

    def tell(self, message: Any, timeout_s: float) -> dict[str, Any]:
        took = self.seconds[self.turns % len(self.seconds)]
        self.turns += 1
        return {"status": "pass", "median_s": took, "least_s": took, "regions": []}

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("seconds", "rounds", "winner"),
    [
        ({"home": [1.0], "same": [1.003], "other": [1.3]}, 3, "home"),
        ({"home": [1.5], "quick": [1.0], "other": [1.3]}, 3, "quick"),
        ({"home": [1.0, 1.1], "noisy": [1.05, 1.0]}, ROUNDS, "noisy"),
    ],
    ids=["as quick", "all others behind", "not told apart"],
)
def test_a_race_ends_when_it_is_decided(seconds: dict[str, list[float]], rounds: int, winner: str) -> None:
    runners = {name: Runner(taken) for name, taken in seconds.items()}
    candidates = [Candidate(Choice(single=name), 1.0) for name in runners]
    trials = race(candidates, lambda choice: runners[choice.single], 1000.0)
    ran = [len(trial.rounds_s) for trial in trials if trial.status == MEASURED]
    assert set(ran) == {rounds}
    assert decide(trials).choice.single == winner
