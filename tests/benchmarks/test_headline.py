"""The headline table without a GPU: cases, the runner with a stand-in for its workers, and what tables say."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mixbackend.benchmarks.commands import headline
from mixbackend.benchmarks.headline import worker
from mixbackend.benchmarks.headline.cases import SETS, Case, case_of, cases
from mixbackend.benchmarks.headline.page import page
from mixbackend.benchmarks.headline.plots import plot
from mixbackend.benchmarks.headline.run import Settings, records, run
from mixbackend.benchmarks.headline.summary import line_of, summarise
from mixbackend.benchmarks.models.registry import models
from mixbackend.benchmarks.row_records import merged

_WORKER = """
import json, os, sys, time
name = sys.argv[1]
def tell(**found):
    print(json.dumps({"row": name, **found}), flush=True)
tell(family="hf", eager_repeats=True)
tell(ways={"eager": {"verdict": "pass"}})
if name.startswith("crash"):
    os.abort()
tell(ways={"ours": {"verdict": "pass", "first_s": 1.0}}, ready=True)
sys.stdin.readline()
if name.startswith("slow"):
    time.sleep(60)
tell(ways={"eager": {"ms": 2.0}, "ours": {"ms": 1.0}}, timed=True)
"""


def test_cases_say_what_they_are():
    everything = cases(SETS)
    assert len({case.name for case in everything}) == len(everything)
    assert all(case_of(case.name) == case for case in everything)
    assert sum(case.phase == "inference" for case in everything) == 2 * len(models())
    assert [case.model for case in cases(["training-amp"], ["resnet18", "dcgan"])] == ["dcgan", "resnet18"]
    with pytest.raises(ValueError, match="resnet18"):
        case_of("resnet18/training/float16")


def test_each_side_compiles_first_in_half_of_the_cases():
    first = [case.order()[1] for case in cases(["inference-float32"])]
    assert 0.4 < first.count("ours") / len(first) < 0.6
    assert set(first) == {"ours", "inductor"}


def test_the_runner_goes_on_and_keeps_what_crashed(tmp_path):
    kept = tmp_path / "rows.jsonl"
    told: list[str] = []
    settings = Settings(kept, "cpu", ("", ""), minutes=2.0, calibration_s=0.0, worker=(sys.executable, "-c", _WORKER))
    wanted = [Case(name, "inference", "float32") for name in ("crash", "one", "two")]
    run(wanted, settings, told.append)
    found = records(kept)
    assert found.keys() == {case.name for case in wanted}
    assert found["crash/inference/float32"]["failed"].startswith("exit status -")
    assert found["crash/inference/float32"]["ways"] == {"eager": {"verdict": "pass"}}
    assert found["one/inference/float32"]["ways"]["ours"] == {"verdict": "pass", "first_s": 1.0, "ms": 1.0}
    assert found["one/inference/float32"]["made_on"]["torch"]
    assert len(told) == 3
    assert run(wanted, settings, told.append) == []
    assert [record["row"] for record in run(wanted, replace(settings, again=True), told.append)] == [wanted[0].name]
    assert run([Case("three", "inference", "float32")], replace(settings, minutes=0.0), told.append) == []


def test_a_case_that_the_end_of_the_run_cuts_is_run_again(tmp_path):
    kept = tmp_path / "rows.jsonl"
    settings = Settings(
        kept,
        "cpu",
        minutes=0.02,
        least_s=0.0,
        calibration_s=0.0,
        worker=(sys.executable, "-c", "import time; time.sleep(60)"),
    )
    assert run([Case("one", "inference", "float32")], settings, print) == []
    assert records(kept) == {}


_TWO_WAYS = """
import sys
from mixbackend.benchmarks.headline import worker
from mixbackend.benchmarks.headline.cases import Case
worker.WAYS = {"eager": ("plain", "default"), "ours": ("mixbackend", "default")}
Case.order = lambda case: ("eager", "ours")
worker.main("lennard_jones/inference/float32", "cpu", 2, 0.1)
"""


def test_a_case_is_measured_on_the_processor():
    command = [sys.executable, "-c", _TWO_WAYS]
    ended = subprocess.run(command, input="go on\n", capture_output=True, text=True, timeout=300, check=True)
    parts = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"row"')]
    record = merged(parts)["lennard_jones/inference/float32"]
    line = line_of(record)
    assert (line.family, line.judged, line.wrong, line.ms.keys()) == ("torchbench", True, {}, {"eager", "ours"}), parts
    assert record["ways"]["ours"]["nodes"]


def test_a_model_that_cannot_be_loaded_says_so(capsys):
    worker.main("nobody/inference/float32", "cpu", 2, 0.1)
    (part,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert "nobody" in part["not_judged"]
    assert part["timed"]


def _record(name, group, times, **more):
    phase, precision = SETS[group]
    ways = {way: {"ms": ms, "verdict": "pass", "first_s": 1.0} for way, ms in times.items()}
    return {"row": f"{name}/{phase}/{precision}", "family": "hf", "eager_repeats": True, "ways": ways, **more}


def _times(eager, inductor, inductor_graphs, ours, ours_graphs):
    named = {"inductor-graphs": inductor_graphs, "ours-graphs": ours_graphs}
    return {"eager": eager, "inductor": inductor, "ours": ours, **named}


@pytest.fixture
def stored():
    wrong = _record("b", "training-amp", _times(8.0, 1.0, 1.0, 1.0, 1.0))
    wrong["ways"]["ours"] |= {"verdict": "fail_accuracy", "mismatches": ["[0]: off | far"]}
    return [
        _record("a", "training-amp", _times(8.0, 4.0, 2.0, 2.0, 4.0)),
        wrong,
        _record("a", "training-float32", _times(8.0, 4.0, 4.0, 4.0, 4.0)),
        _record("c", "inference-float16", {}, not_judged="KeyError: c", eager_repeats=False),
        _record("d", "inference-float16", {"eager": 1.0}, failed="exit status -6"),
    ]


def test_means_compare_equal_cases(stored):
    found = summarise(stored)
    group = found["groups"]["training-amp"]
    assert (group["cases"], group["compared"]) == (2, 1), "a wrong way is no time"
    assert (group["ours_over_inductor"], group["ours_graphs_over_inductor_graphs"]) == (2.0, 0.5)
    assert (group["ours_best_over_eager"], group["ours_best_over_inductor_best"]) == (4.0, 1.0)
    assert group["losses"] == {"ours": {}, "ours-graphs": {"a": 0.5}}
    assert group["wrong"] == {"b": {"ours": "[0]: off | far"}}
    assert group["right"]["ours"] == 1
    assert found["weighted_training"] == {"ours_best": 3.5, "inductor_best": 3.5}
    inference = found["groups"]["inference-float16"]
    assert (inference["cases"], inference["judged"], inference["compared"]) == (2, 1, 0)
    assert inference["wrong"]["d"]["ours"] == "its process: exit status -6"
    assert inference["not_judged"] == {"c": "KeyError: c"}


def test_the_page_names_what_failed_and_what_is_missing(stored):
    text = page(stored, "run it")
    assert "```\nrun it\n```" in text
    assert f"| Training, AMP (bfloat16) | 1 of {len(cases(['training-amp']))} | 2.00 |" in text
    assert "- b: ours: [0]: off / far" in text
    assert "c (KeyError: c)" in text
    assert "ours-graphs: a 0.50" in text
    assert "**ours 3.50**, inductor 3.50" in text


def test_the_page_says_how_many_were_still_trying(stored):
    told = "In 1 of 2 cases ours had settled"
    both = [{**stored[0], "settled": True}, {**stored[1], "settled": False}]
    assert told in page(both, "run it")
    stopped = page([both[0], {**both[1], "stopped": True}], "run it")
    assert "in 1 it was stopped trying then, and what ran is what was timed." in stopped
    assert "had settled" not in page([{**record, "settled": True} for record in both], "run it")
    assert "a plan could not be tried" not in stopped
    failed = {**both[0], "ways": {"ours": {"challengers": {"out": 2}}, "inductor": {}}}
    assert "In 1 compiled models a plan could not be tried" in page([failed, both[1]], "run it")


def test_the_picture_is_the_same_for_the_same_records(stored, tmp_path):
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    plot(stored, one)
    plot(stored, two)
    assert one.read_bytes() == two.read_bytes()
    assert b"<svg" in one.read_bytes()


def test_the_command_shows_what_a_file_holds(stored, tmp_path, capsys):
    kept = tmp_path / "rows.jsonl"
    kept.write_text("".join(f"{json.dumps(record)}\n" for record in stored))
    written = tmp_path / "page.md"
    assert headline.main(["--summary", "--output", str(kept), "--page", str(written), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"]["training-amp"]["compared"] == 1
    assert written.read_text().startswith("# The headline table")
    with pytest.raises(SystemExit):
        headline.main(["--sets", "training"])


def test_the_page_in_the_tree_is_made_of_the_stored_records(tmp_path):
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    written = tmp_path / "page.md"
    arguments = [
        "--summary",
        "--sets",
        "training-amp,inference-float16",
        "--output",
        str(results / "headline" / "hopper.jsonl"),
    ]
    assert headline.main([*arguments, "--page", str(written)]) == 0
    made, stored = (path.read_text(encoding="utf-8").split("\n\n") for path in (written, results / "headline.md"))
    assert [part for part in stored if not part.startswith("![")] == made
