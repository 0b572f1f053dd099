"""A process that ends before everybody was tried leaves what it found: the next one begins with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_in_backends import settle

from mixbackend.select import tuner

X = torch.randn(8, 8)
ROOT = Path(__file__).parents[3]

PROCESS = """
import json, os, sys
import pytest, torch
from stand_in_backends import try_at_once
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.cost.costs import SessionCosts
from mixbackend.select.live import processor_challengers

try_at_once(pytest.MonkeyPatch())
processor_challengers.LEAST_S = 0.0
SessionCosts.comparable = lambda self, graph: {"codegen", "onednn", "onnxruntime"}
folder, most = sys.argv[1], int(sys.argv[2])
mixture = Mixture(load_config({"backends": ["codegen", "onednn", "onnxruntime", "eager"], "cache": {"dir": folder}}))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).eval()
compiled, x = torch.compile(model, backend=mixture, dynamic=False), torch.randn(16, 64)
with torch.no_grad():
    while True:
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        (graph,) = mixture.report().to_dict()["graphs"]
        happened = (graph["selection"] or {"happened": []})["happened"]
        if len(happened) >= most or mixture.settled():
            break
print(json.dumps([[item["challenger"] for item in happened], mixture.settled()]), flush=True)
os._exit(0)
"""


def model(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1.0).relu()


def used(mixture: Any) -> list[set[str]]:
    return [{region.backend for region in graph.plan.regions} for graph in mixture.report().graphs]


def told(mixture: Any) -> list[str]:
    return [event.detail for event in mixture.report().events if event.kind == "tuning"]


@pytest.mark.usefixtures("worth_comparing", "tried_at_once")
def test_the_champion_so_far_is_found_at_once_and_others_are_tried(make_mixture, sleeper, monkeypatch) -> None:
    monkeypatch.setattr(tuner, "why_untunable", lambda environment: "")
    monkeypatch.setenv("MIXBACKEND_BACKGROUND", "off")

    def backends() -> list[Any]:
        return [sleeper("slow", 0.01), sleeper("better", 0.005), sleeper("quick", 0.0)]

    first = make_mixture(*backends())
    with torch.no_grad():
        compiled = torch.compile(model, backend=first, dynamic=False)
        while not any("took the place" in text for text in told(first)):
            compiled(X)
    winner = told(first)[-1].split()[0]
    assert not first.settled() and used(first) == [{winner}]
    (kept,) = first.report().to_dict()["graphs"]

    torch._dynamo.reset()
    later = make_mixture(*backends())
    with torch.no_grad():
        compiled = torch.compile(model, backend=later, dynamic=False)
        compiled(X)
        assert used(later) == [{winner}] and not later.settled()
        settle(later, lambda: torch.testing.assert_close(compiled(X), model(X)))
    assert used(later) == [{"quick"}]
    decided = {item["challenger"] for item in kept["selection"]["happened"]}
    (graph,) = later.report().to_dict()["graphs"]
    tried = [item["challenger"] for item in graph["selection"]["happened"]]
    assert tried and not decided & set(tried)
    assert {row["choice"] for row in graph["tuning"]["trials"]} >= decided | set(tried)

    torch._dynamo.reset()
    last = make_mixture(*backends())
    with torch.no_grad():
        torch.compile(model, backend=last, dynamic=False)(X)
    assert last.settled() and used(last) == [{"quick"}] and told(last) == []


@pytest.mark.nightly
def test_processes_that_end_early_try_one_challenger_each(tmp_path: Path) -> None:
    """Each ends without a word once one comparison is concluded."""
    environment = {**os.environ, "MIXBACKEND_BACKGROUND": "off", "MIXBACKEND_CALIBRATE": "0"}
    environment["PYTHONPATH"] = str(ROOT / "tests")
    tried: list[str] = []
    for _ in range(6):
        command = [sys.executable, "-c", PROCESS, str(tmp_path / "cache"), "1"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        happened, settled = json.loads(done.stdout.splitlines()[-1])
        tried += happened
        if settled:
            break
    else:
        raise AssertionError(f"never settled: {tried}")
    assert len(tried) == len(set(tried)) >= 2, "nobody is tried twice"
