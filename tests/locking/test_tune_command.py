"""``mixbackend tune`` and ``explain --lock`` as people run them: measured, written, held elsewhere, refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mixbackend.cli import main
from mixbackend.cost.switches import SWITCH
from mixbackend.locking.reading import read_lock

Call = Callable[..., tuple[int, str, str]]

MODEL = """
import torch
from torch import nn

def make(rows=4, width=64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 8))
    return model, (torch.randn(rows, 64),), {}

def longer():
    return make(rows=9)

def wider():
    return make(width=72)

class Branching(nn.Module):
    def forward(self, value):
        return torch.cond(value.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (value,))

def branching():
    return Branching(), (torch.ones(3),), {}

def plain():
    return (lambda value: value + 1), (torch.ones(3),), {}
"""
PREFERENCES = """
backends: [eager]
cache: {dir: cache}
"""
"""With eager alone there is one placement, and nothing to measure."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with models and a configuration."""
    (tmp_path / "models_to_lock.py").write_text(MODEL)
    (tmp_path / "prefs.yaml").write_text(PREFERENCES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SWITCH, "0")
    monkeypatch.delenv("MIXBACKEND_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command line in this process: (status, standard output, standard error)."""

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        torch._dynamo.reset()
        with pytest.raises(SystemExit) as left:
            main([command, *arguments, "--config", "prefs.yaml"])
        captured = capsys.readouterr()
        code = left.value.code
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    return run


def process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, "-m", "mixbackend", *arguments],
        capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=200,
    )  # fmt: skip


@pytest.mark.nightly
def test_a_suite_model_is_tuned_locked_and_held_elsewhere(folder: Path) -> None:
    """In processes of their own, the second with nothing in its caches."""
    for cache, file in (("cache", "prefs.yaml"), ("empty", "empty.yaml")):
        (folder / file).write_text(f"backends: [onednn, eager]\ncache: {{dir: {cache}}}\n")
    done = process(
        folder, "tune", "lennard_jones", "--config", "prefs.yaml", "--lock", "m.lock.yaml", "--budget", "30", "--json"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    (graph,) = answer["graphs"]
    assert graph["tuning"]["trials"] and answer["lock"]["added"] == ["inference-0"]
    (entry,) = read_lock(folder / "m.lock.yaml").graphs
    assert entry.made_by == "mixbackend tune lennard_jones --config prefs.yaml"
    assert entry.chosen == graph["tuning"]["chosen"] and entry.measured
    held = process(
        folder, "explain", "lennard_jones", "--config", "empty.yaml", "--lock", "m.lock.yaml", "--frozen", "--json"
    )
    assert held.returncode == 0, held.stderr[-3000:]
    (again,) = json.loads(held.stdout)["graphs"]
    assert [(region["backend"], region["nodes"]) for region in again["regions"]] == [
        (region["backend"], region["nodes"]) for region in graph["regions"]
    ]


def test_training_is_locked(call: Call) -> None:
    status, text, errors = call("tune", "models_to_lock:make", "--train", "--lock", "m.lock.yaml")
    assert status == 0, errors
    assert "forward-0: forward" in text and "backward-0: backward" in text and "nothing was measured" in text
    assert "m.lock.yaml: 2 graphs written (2 added)" in text
    file = read_lock("m.lock.yaml")
    assert [graph.phase for graph in file.graphs] == ["forward", "backward"] and len(file.joints) == 1
    assert "measured_s" in Path("m.lock.yaml").read_text()
    status, text, errors = call("tune", "models_to_lock:make", "--train", "--lock", "m.lock.yaml", "--frozen")
    assert status == 0 and text == "m.lock.yaml: holds for 2 graphs\n", errors


def test_symbolic_sizes(call: Call) -> None:
    status, text, errors = call("tune", "models_to_lock:make", "--dynamic", "--lock", "m.lock.yaml", "--json")
    assert status == 0, errors
    assert json.loads(text)["graphs"][0]["dynamic"] is True and json.loads(text)["lock"]["without_text"] == []
    (entry,) = read_lock("m.lock.yaml").graphs
    assert entry.dynamic and entry.made_by == "mixbackend tune models_to_lock:make --config prefs.yaml --dynamic"
    status, text, errors = call("tune", "models_to_lock:make", "--dynamic", "--lock", "m.lock.yaml", "--frozen")
    assert status == 0, errors
    status, text, errors = call("tune", "models_to_lock:make", "--lock", "m.lock.yaml", "--frozen")
    assert status == 1 and "+ input: activation tensor(float32, [4, 64]" in errors and "[s0, 64]" in errors


def test_a_graph_without_text_is_told_and_its_bodies_are_written(call: Call) -> None:
    status, text, errors = call("tune", "models_to_lock:branching", "--lock", "m.lock.yaml")
    assert status == 0, errors
    assert "m.lock.yaml: 1 graph written" in text and "inference-0 has no text and is not in the file" in text
    assert [graph.graph for graph in read_lock("m.lock.yaml").graphs] == ["inference-0.true_graph_0"]


def test_several_commands_share_a_file_and_tuning_again_changes_nothing(call: Call) -> None:
    for model in ("make", "longer"):
        assert call("tune", f"models_to_lock:{model}", "--lock", "m.lock.yaml")[0] == 0
    assert len(read_lock("m.lock.yaml").graphs) == 2
    before = Path("m.lock.yaml").read_text()
    status, text, _ = call("tune", "models_to_lock:make", "--lock", "m.lock.yaml")
    assert status == 0 and "1 graph written (1 same)" in text
    assert "entries of other commands that stay as they were: inference-0" in text
    measured = re.compile(" *measured_s: .*\n")
    assert measured.sub("", Path("m.lock.yaml").read_text()) == measured.sub("", before)


def test_the_check_lists_every_difference(call: Call) -> None:
    assert call("tune", "models_to_lock:make", "--lock", "m.lock.yaml")[0] == 0
    Path("m.lock.yaml").write_text(Path("m.lock.yaml").read_text().replace("  torch: ", "  torch: 0.0.1 # "))
    status, text, errors = call("tune", "models_to_lock:make", "--lock", "m.lock.yaml", "--frozen")
    assert (
        status == 1 and text == "" and "[lock]" in errors and "- torch: 0.0.1" in errors and "Traceback" not in errors
    )
    assert "`mixbackend tune models_to_lock:make --config prefs.yaml --lock m.lock.yaml`" in errors
    Path("models_to_lock.py").write_text(MODEL.replace("nn.GELU()", "nn.ReLU(), nn.ReLU6()"))
    del sys.modules["models_to_lock"]
    status, text, _ = call("tune", "models_to_lock:make", "--lock", "m.lock.yaml", "--frozen", "--json")
    differences = json.loads(text)["lock"]["differences"]
    assert status == 1
    assert {"graph": "inference-0", "what": "aten.gelu.default", "locked": "1 times", "here": "0 times"} in differences
    assert any("does not come up here" in item["what"] for item in differences)


def test_explain_as_locked(call: Call) -> None:
    assert call("tune", "models_to_lock:make", "--lock", "m.lock.yaml")[0] == 0
    status, text, errors = call("explain", "models_to_lock:make", "--lock", "m.lock.yaml", "--frozen")
    assert status == 0 and "inference-0: inference" in text, errors
    status, _, errors = call("explain", "models_to_lock:wider", "--lock", "m.lock.yaml", "--frozen")
    assert status == 1 and errors.count("[lock]") == 1 and "the graph is not in the file" in errors
    assert "Traceback" not in errors and "BackendCompilerFailed" not in errors
    status, text, errors = call("explain", "models_to_lock:wider", "--lock", "m.lock.yaml", "--json")
    assert status == 0, errors
    assert any(event["kind"] == "lock" for event in json.loads(text)["events"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("tune", "no_such_model_at_all"),
        ("tune", "models_to_lock:make", "--frozen"),
        ("explain", "models_to_lock:make", "--frozen"),
        ("tune", "models_to_lock:make", "--lock", "no_folder/m.lock.yaml"),
        ("tune", "models_to_lock:make", "--lock", "."),
        ("tune", "models_to_lock:make", "--budget", "0"),
        ("tune", "models_to_lock:plain", "--train"),
    ],
)
def test_a_wrong_command_line_ends_with_two(call: Call, arguments: tuple[str, ...]) -> None:
    status, text, errors = call(*arguments)
    assert status == 2 and text == "" and "Error" in errors and "Traceback" not in errors


def test_a_damaged_file_is_told_before_anything_is_measured(call: Call) -> None:
    Path("m.lock.yaml").write_text("version: 1\ngraphs: 3\n")
    status, text, errors = call("tune", "models_to_lock:make", "--lock", "m.lock.yaml")
    assert status == 1 and text == "" and "m.lock.yaml:2:9: graphs: should be a list of graphs" in errors
    assert not Path("cache").exists()
    assert Path("m.lock.yaml").read_text() == "version: 1\ngraphs: 3\n"
    Path("m.lock.yaml").unlink()
    status, text, errors = call("tune", "models_to_lock:make", "--lock", "m.lock.yaml", "--frozen")
    assert status == 1 and text == "" and "m.lock.yaml: cannot be read: No such file" in errors
    status, text, _ = call("tune", "models_to_lock:make", "--lock", "m.lock.yaml", "--frozen", "--json")
    (difference,) = json.loads(text)["lock"]["differences"]
    assert status == 1 and "cannot be read" in difference["what"]
