"""Tuning again and again: what agrees, what a second run takes, how other placements compare, resuming, failures."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from mixbackend.benchmarks import tuning
from mixbackend.benchmarks.peers import reference
from mixbackend.benchmarks.peers.request import PeerCase
from mixbackend.benchmarks.peers.suite_models import find_model
from mixbackend.benchmarks.peers.turns import Options
from mixbackend.benchmarks.results import ResultFile
from mixbackend.benchmarks.tuning_summary import print_tuning, summarise
from mixbackend.cli import app

FAKE = """
import json, os, sys
from pathlib import Path

from mixbackend.host.processes import end_with_parent

end_with_parent()

def say(**answer):
    print(json.dumps(answer), flush=True)

request = json.loads(sys.stdin.readline())
model = request["case"]["model"]
with open(os.environ["TUNING_NOTES"], "a") as stream:
    stream.write(json.dumps([request["task"], model]) + "\\n")
if request["task"] == "reference":
    Path(request["folder"], "reference.pt").touch()
    say(status="failed" if model == "broken" else "pass", flops=1, bytes=1, detail="no eager")
else:
    cache = Path(request["configuration"]["cache"]["dir"])
    number = int(cache.name.rpartition("-")[2])
    decided = cache / "decided"
    first = not decided.exists()
    decided.touch()
    if model == "crashing" and number == 1:
        os.abort()
    name = "odd" if model == "torn" and number == 2 else "usual"
    name += " forgotten" if model == "forgetful" and not first else ""
    say(status="pass", first_call_s=10.0 if first else 0.5, parts={"placement": name, "chosen": [name + " choice"]})
    for line in sys.stdin:
        say(status="pass", median_s={"usual": 2.0}.get(name, 2.5), calls=2, cores_of_others=0.0)
"""


@pytest.fixture
def fake_tuner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module ``fake_tuner`` for processes; gives the file in which they note what they were asked."""
    (tmp_path / "fake_tuner.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TUNING_NOTES", str(tmp_path / "notes.jsonl"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "notes.jsonl"


def run(model: str, tries: int, file: Path, over: Any = lambda: False) -> list[dict[str, Any]]:
    options = Options(("codegen",), rounds=5, seconds=0.01, timeout_s=20.0, memory_gb=0.0, module="fake_tuner")
    cases = [PeerCase(model, 1, "inference", "float32")]
    return tuning.run(cases, tries, 5.0, options, ResultFile(file), "", lambda text, behind_s: None, over)


def asked(notes: Path) -> list[str]:
    return [json.loads(line)[0] for line in notes.read_text().splitlines()]


def test_each_try_begins_with_nothing_and_runs_twice(fake_tuner: Path, tmp_path: Path) -> None:
    (found,) = run("m", 3, tmp_path / "f")
    assert asked(fake_tuner) == ["reference", *["peer"] * 6]
    value = summarise([found], 3, {})
    (case,) = value["cases"]
    assert (case["same"], case["made"], case["complete"], len(case["plans"])) == (3, 3, True, 1)
    assert case["second_over_first"]["most"] == pytest.approx(0.05) and case["seconds_agree"] == 3
    assert case["goals"] == {"same": True, "second": True}
    assert value["summary"]["same_share"] == 1.0
    assert not list((tmp_path / "cache" / "mixbackend" / "bench-tuning").iterdir()), "caches are taken away"


def test_other_placements_are_timed_against_the_most_frequent(fake_tuner: Path, tmp_path: Path) -> None:
    (found,) = run("torn", 4, tmp_path / "f")
    (case,) = summarise([found], 4, {})["cases"]
    usual, odd = case["plans"]
    assert (usual["count"], usual["chosen"], odd["count"]) == (3, ["usual choice"], 1)
    assert odd["over_most_frequent"] == pytest.approx(0.8) and odd["within_noise"] is False
    assert case["goals"]["same"] is False
    screen = Console(file=io.StringIO(), width=200)
    print_tuning(summarise([found], 4, {}), screen)
    text = screen.file.getvalue()
    for expected in ("3 of 4", "1x odd choice 2.5e+03 (0.800 ±0.0%)", "below 90%: torn", "largest difference is 20.0%",
                     "second run over first: 5.0%"):  # fmt: skip
        assert expected in text, expected


@pytest.mark.parametrize(
    ("deviations", "expected"), [((0.0, 0.0, 0.0, 0.0), True), ((0.4, -0.3, 0.3, -0.2), None), ((0.0,), None)]
)
def test_as_fast_is_said_only_where_noise_allows(deviations: tuple[float, ...], expected: bool | None) -> None:
    tries = [
        {"try": number, "status": "pass", "placement": name, "chosen": [name], "first_s": 1.0, "second_s": 0.1,
         "second_agrees": True}
        for number, name in enumerate(("a", "a", "b"))
    ]  # fmt: skip
    plans = [{"placement": name, "rounds_s": [1.0 + shift for shift in shifts]}
             for name, shifts in (("a", (0.0,) * len(deviations)), ("b", deviations))]  # fmt: skip
    case = {"model": "m", "batch": 1, "phase": "inference", "dtype": "float32"}
    value = summarise([{"case": case, "tries": tries, "plans": plans, "trouble": ""}], 3, {})
    assert value["cases"][0]["plans"][1]["within_noise"] is expected
    assert value["summary"]["other_plans_too_noisy"] == (expected is None)


def test_a_stopped_run_goes_on_and_nothing_is_run_twice(fake_tuner: Path, tmp_path: Path) -> None:
    over = iter((False, True, True))
    (stopped,) = run("torn", 3, tmp_path / "f", lambda: next(over))
    assert len(stopped["tries"]) == 1 and stopped["plans"] is None
    (case,) = summarise([stopped], 3, {})["cases"]
    assert not case["complete"] and case["goals"] == {"same": None, "second": None}
    (resumed,) = run("torn", 3, tmp_path / "f")
    assert [record["placement"] for record in resumed["tries"]] == ["usual", "usual", "odd"]
    assert [len(plan["rounds_s"]) for plan in resumed["plans"]] == [5, 5]
    before = asked(fake_tuner)
    assert run("torn", 3, tmp_path / "f") == [resumed] and asked(fake_tuner) == before


def test_a_try_that_fails_does_not_agree(fake_tuner: Path, tmp_path: Path) -> None:
    (found,) = run("crashing", 2, tmp_path / "f")
    (case,) = summarise([found], 2, {})["cases"]
    assert (case["same"], case["made"], case["goals"]["same"]) == (1, 2, False)
    assert case["tries"][1]["status"] == "crash"


def test_a_second_run_that_forgot_is_seen(fake_tuner: Path, tmp_path: Path) -> None:
    (found,) = run("forgetful", 1, tmp_path / "f")
    assert summarise([found], 1, {})["cases"][0]["seconds_agree"] == 0


def test_without_a_reference_there_is_no_try(fake_tuner: Path, tmp_path: Path) -> None:
    (found,) = run("broken", 2, tmp_path / "f")
    assert found["tries"] == [] and found["trouble"] == "failed: no eager"
    screen = Console(file=io.StringIO(), width=200)
    print_tuning(summarise([found], 2, {}), screen)
    assert "broken: failed: no eager" in screen.file.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--models", "nope"), "no model is called 'nope'"),
        (("--phase", "both"), "'both' should be one of inference, training"),
        (("--tries", "0"), "0 tries should be one or more"),
        (("--backends", "nope"), "no usable backend is called nope"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["bench", "tuning", *arguments])
    assert done.exit_code == 2 and message in done.output


@pytest.mark.nightly
def test_a_tiny_model_is_tuned_and_then_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reference_here(case: PeerCase, folder: str, options: Options) -> dict[str, Any]:
        reference.make(find_model(case.model), case, Path(folder))
        return {"status": "pass"}

    monkeypatch.setattr(tuning, "ask_reference", reference_here)  # one process less
    command = ["bench", "tuning", "--models", "suite:lennard_jones", "--backends", "onednn", "--tries", "1",
               "--budget", "30", "--resume", str(tmp_path / "f"), "--json"]  # fmt: skip
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    (case,) = json.loads(done.stdout)["cases"]
    assert case["tries"][0]["status"] == "pass", case
    assert case["tries"][0]["second_agrees"] and case["tries"][0]["chosen"] != [""]
    assert case["second_s"]["median"] < case["first_s"]["median"]
