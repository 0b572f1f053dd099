"""What estimates are worth: ranks and errors by hand, regions of real models, resuming, failures."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn, randn
from typer.testing import CliRunner

from mixbackend.benchmarks.costs import COSTS, CostRun, measure, missing, runs_for
from mixbackend.benchmarks.costs_summary import print_costs, quality, rank_correlation, ranked, summarise
from mixbackend.benchmarks.costs_worker import CostRequest, serve
from mixbackend.benchmarks.peers.models import PeerModel, square_loss
from mixbackend.benchmarks.peers.request import PeerCase
from mixbackend.benchmarks.peers.turns import Options
from mixbackend.benchmarks.results import ResultFile
from mixbackend.cli import app

CASE = PeerCase("tiny", 3, "inference", "float32")
OPTIONS = Options(("codegen",), timeout_s=20.0, memory_gb=0.0)


def test_ranks_of_equal_values_are_shared() -> None:
    assert ranked(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_rank_correlation_is_spearmans() -> None:
    rising = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(rising, rising**3) == pytest.approx(1.0)
    assert rank_correlation(rising, -rising) == pytest.approx(-1.0)
    # By hand: differences of ranks 1, 1, 0, 0, so 1 - 6 * 2 / (4 * 15).
    assert rank_correlation(rising, np.array([2.0, 1.0, 3.0, 4.0])) == pytest.approx(0.8)
    assert rank_correlation(rising[:2], rising[:2]) is None
    assert rank_correlation(rising, np.ones(4)) is None


def region(estimated: float, measured: float, **facts: Any) -> dict[str, Any]:
    known = {"phase": "inference", "region": "r0", "content": f"{measured}", "backend": "codegen", "nodes": 1,
             "ops": "add", "equal": 1, "estimated_s": estimated, "measured_s": measured, "spread": 0.0}  # fmt: skip
    return {**known, **facts}


def test_errors_are_relative_to_what_was_measured() -> None:
    found = quality([region(1.0, 2.0), region(3.0, 2.0), region(10.0, 1.0), region(4.0, 4.0)])
    assert found["median_error"] == pytest.approx(0.5) and found["median_ratio"] == pytest.approx(1.25)
    assert found["time_error"] == pytest.approx(11.0 / 9.0) and found["within_twice"] == 0.5
    assert quality([])["median_error"] is None and quality([])["regions"] == 0


def record(kind: str, *regions: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {"model": "m", "phase": "inference", "peer": "mixture", "costs": kind, "status": "pass",
            "regions": list(regions), "cores_of_others": 0.25, **facts}  # fmt: skip


def test_both_kinds_of_costs_are_compared_on_the_same_regions() -> None:
    value = summarise(
        [
            record("priors", region(2.0, 1.0), region(9.0, 3.0), region(4.0, 4.0, backend="onednn")),
            record("calibrated", region(1.0, 1.0), region(5.0, 4.0)),
            {**record("calibrated"), "status": "crash", "detail": "signal\nSIGSEGV", "peer": "only-codegen"},
        ],
        {},
    )
    assert value["quality"]["priors"]["all"]["regions"] == 3 and value["both"]["priors"]["all"]["regions"] == 1
    assert value["both"]["priors"]["all"]["median_error"] == 1.0
    assert value["both"]["calibrated"]["all"]["median_error"] == 0.0
    assert set(value["quality"]["priors"]["backends"]) == {"codegen", "onednn"}
    assert [problem["status"] for problem in value["problems"]] == ["crash"]
    json.dumps(value, allow_nan=False)
    screen = Console(file=io.StringIO(), width=200)
    print_costs(value, screen)
    text = screen.file.getvalue()
    assert "cores that others used meanwhile: 0.25, at most 0.25" in text
    assert "planned with either costs" in text and "only-codegen, calibrated: crash: signal SIGSEGV" in text


def tiny(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4), nn.Softmax(-1)), (randn(batch, 8),)


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_regions_of_a_warm_model_are_timed_where_they_stand(tmp_path: Path, phase: Any) -> None:
    configuration = {"backends": ["eager"], "cache": {"dir": str(tmp_path / "cache")}, "verify": {"when": "off"}}
    request = CostRequest(PeerCase("tiny", 3, phase, "float32"), configuration, blocks=3, warm_up_s=0.01)
    assert CostRequest.from_line(request.to_line()) == request
    torch._dynamo.reset()  # others compiled Sequential, too, and from the ninth time on Dynamo leaves it to eager
    answer = serve(request, lambda name: PeerModel("tiny", tiny, square_loss, 3, "own"))
    assert answer["status"] == "pass" and answer["untimed"] == 0 and answer["regions"]
    assert {row["backend"] for row in answer["regions"]} == {"eager"}
    assert all(row["measured_s"] > 0 and row["estimated_s"] > 0 for row in answer["regions"])
    assert answer["cores_of_others"] >= 0
    assert answer["call_s"] > 0 and 0 < sum(row["measured_s"] for row in answer["regions"]) < 1
    assert {row["phase"] for row in answer["regions"]} == (
        {"inference"} if phase == "inference" else {"forward", "backward"}
    )


FAKE = """
import json, os, sys

request = json.loads(sys.stdin.readline())
with open(os.environ["COSTS_NOTES"], "a") as stream:
    stream.write(json.dumps([request["configuration"]["backends"], os.environ["MIXBACKEND_CALIBRATE"]]) + "\\n")
if request["configuration"]["backends"] == ["codegen", "eager"] and request["case"]["model"] == "crashing":
    os.abort()
print(json.dumps({"status": "pass", "regions": [], "untimed": 0, "call_s": 1.0}), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def fake_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module ``fake_costs`` for processes; gives the file in which they note how they were started."""
    (tmp_path / "fake_costs.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("COSTS_NOTES", str(tmp_path / "notes.jsonl"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "notes.jsonl"


def run(runs: list[CostRun], file: Path, over: Any = lambda: False) -> list[dict[str, Any]]:
    return measure(runs, OPTIONS, 2, ResultFile(file), "", lambda text, behind_s: None, over, "fake_costs")


def test_every_backend_runs_alone_with_either_costs_and_nobody_probes(fake_costs: Path, tmp_path: Path) -> None:
    runs = runs_for([CASE], ("codegen",), COSTS)
    assert [(item.peer, item.costs) for item in runs] == [
        ("mixture", "priors"), ("mixture", "calibrated"), ("only-codegen", "priors"), ("only-codegen", "calibrated"),
    ]  # fmt: skip
    records = run(runs, tmp_path / "f")
    assert [record["costs"] for record in records] == ["priors", "calibrated"] * 2
    notes = [json.loads(line) for line in fake_costs.read_text().splitlines()]
    assert notes == [[["codegen", "eager"], "0"]] * 4


def test_a_run_that_was_stopped_goes_on_and_a_crash_costs_itself(fake_costs: Path, tmp_path: Path) -> None:
    runs = runs_for([PeerCase("crashing", 1, "inference", "float32")], ("codegen",), ("priors",))
    over = iter((False, True))
    (first,) = run(runs, tmp_path / "f", lambda: next(over))
    assert first["status"] == "crash" and "SIGABRT" in first["detail"]
    assert [item.peer for item in missing(runs, OPTIONS, 2, ResultFile(tmp_path / "f"), "")] == ["only-codegen"]
    assert len(run(runs, tmp_path / "f")) == 2 and len(fake_costs.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--blocks", "0"), "0 blocks should be one or more"),
        (("--models", "suite:nope"), "no model 'nope'"),
        (("--costs", "priors,guesses"), "should be of priors, calibrated"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["bench", "costs", *arguments])
    assert done.exit_code == 2 and message in done.output


@pytest.mark.nightly
def test_a_tiny_model_from_the_command_line(tmp_path: Path) -> None:
    command = ["bench", "costs", "--models", "suite:lennard_jones", "--backends", "onednn", "--costs", "priors",
               "--blocks", "2", "--resume", str(tmp_path / "f")]  # fmt: skip
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert value["problems"] == [] and value["settings"]["left"] == []
    assert value["quality"]["priors"]["all"]["regions"] > 0
    assert "farthest off" in CliRunner().invoke(app, command).stdout
