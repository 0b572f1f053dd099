"""The GPU benchmark's command without a GPU: resuming, failures, tables. Its workers are stood in for."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from mixbackend.benchmarks import gpu
from mixbackend.benchmarks.gpu_models import ROWS
from mixbackend.benchmarks.row_records import merged, read

_WORKER = """
import json, os, sys, time
from pathlib import Path
if sys.argv[1] == "calibrate":
    Path(os.environ["CALIBRATED"]).write_text(sys.argv[2])
    sys.exit()
name, ways, turns = sys.argv[1:]
if name == "bert":
    sys.exit(3)
if name.startswith("train-"):
    # Rows on different GPUs are at it at the same time.
    Path(os.environ["MEETING"], os.environ["CUDA_VISIBLE_DEVICES"]).touch()
    while len(os.listdir(os.environ["MEETING"])) < 2:
        time.sleep(0.01)
if name == "gpt2":
    time.sleep(60)
def tell(**found):
    print(json.dumps({"row": name, **found}), flush=True)
tell(phase="inference")
for way in ways.split(","):
    tell(ways={way: {"first_s": 1.0}})
tell(ready=True)
sys.stdin.readline()
if name == "swin-tiny":
    sys.exit(4)
tell(ways={way: {"ms": len(way)} for way in ways.split(",")}, timed=True)
"""


@pytest.fixture
def command(monkeypatch, tmp_path):
    monkeypatch.setenv("CALIBRATED", str(tmp_path / "calibrated.txt"))
    worker = (sys.executable, "-c", _WORKER)
    path = tmp_path / "rows.jsonl"

    def run(rows, *more):
        arguments = ["--output", str(path), "--rows", rows, "--ways", "inductor,ours", "--least", "0", *more]
        status = gpu.main(arguments, worker)
        return status, merged(read(path))

    return run


def test_it_goes_on_where_it_stopped(command, capsys):
    status, records = command("resnet50,llama")
    assert status == 0
    assert records.keys() == {"resnet50", "llama"}
    assert records["llama"]["ways"] == {"inductor": {"first_s": 1.0, "ms": 8}, "ours": {"first_s": 1.0, "ms": 4}}
    assert merged(map(json.loads, capsys.readouterr().out.splitlines())) == records
    _, records = command("resnet50,llama,vit-b16", "--jobs", "1")
    assert records.keys() == {"resnet50", "llama", "vit-b16"}
    assert {json.loads(line)["row"] for line in capsys.readouterr().out.splitlines()} == {"vit-b16"}


def test_a_row_that_fails_costs_only_itself(command):
    status, records = command("bert,gpt2,swin-tiny,resnet50", "--timeout", "2")
    assert status == 1
    assert {name: record.get("failed") for name, record in records.items()} == {
        "bert": "exit status 3",
        "gpt2": "not done in time",
        "swin-tiny": "exit status 4",
        "resnet50": None,
    }
    assert records["swin-tiny"]["ways"]["ours"] == {"first_s": 1.0}, "what was told is kept"
    assert command("bert", "--timeout", "2")[0] == 1, "what failed is tried again"


def test_every_gpu_has_a_row_of_its_own(command, monkeypatch, tmp_path):
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    monkeypatch.setenv("MEETING", str(meeting))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    status, records = command("train-bert,train-gpt2,resnet50", "--timeout", "20")
    assert (status, records.keys()) == (0, {"train-bert", "train-gpt2", "resnet50"})
    assert {path.name for path in meeting.iterdir()} == {"3", "5"}


def test_gpus_are_those_that_are_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu.visible_gpus() == ("1",)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert gpu.visible_gpus() == ("0", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpu.visible_gpus() == ("",)


def test_rates_get_their_time_before_rows(command, tmp_path):
    command("resnet50", "--calibration", "33")
    assert (tmp_path / "calibrated.txt").read_text() == "33"
    (tmp_path / "calibrated.txt").unlink()
    # All rows are there: nothing is measured.
    command("resnet50")
    assert not (tmp_path / "calibrated.txt").exists()


def test_no_row_is_begun_without_time(command):
    assert command("resnet50", "--minutes", "0") == (0, {})
    assert command("resnet50", "--minutes", "1", "--least", "70") == (0, {})


def test_the_table_compares_like_with_like():
    ways = {"inductor": 4.0, "inductor-graphs": 3.0, "ours": 2.0, "ours-graphs": 2.5}
    records = [
        {"row": "one", "phase": "inference", "ways": {way: {"ms": ms} for way, ms in ways.items()}},
        {"row": "two", "phase": "training", "ways": {"inductor": {"ms": 1.0}, "ours": {"failed": "RuntimeError"}}},
        {"row": "three", "failed": "exit status 1"},
    ]
    head, one, two, mean = (line.split() for line in gpu.table(records).splitlines())
    assert head[0] == "row"
    assert one[-3:] == ["2.000", "1.200", "1.500"]
    assert "failed" in two
    assert mean[-1] == "1.500"


def test_unknown_rows_are_named(command, capsys):
    with pytest.raises(SystemExit):
        command("resnet51")
    assert "resnet51" in capsys.readouterr().err


def test_the_rows_of_the_comparison_are_there():
    phases = [row.phase for row in ROWS.values()]
    assert (phases.count("inference"), phases.count("training")) == (10, 5)
