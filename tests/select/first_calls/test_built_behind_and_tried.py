"""Challengers of a real graph are planned and compiled by another process, loaded, tried and remembered."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from stand_in_backends import settle, try_at_once

from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.cost.costs import SessionCosts
from mixbackend.host import behind_budget
from mixbackend.select.live import processor_challengers


def test_a_challenger_is_built_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_at_once(monkeypatch)
    monkeypatch.delenv("MIXBACKEND_BACKGROUND", raising=False)
    monkeypatch.setattr(processor_challengers, "LEAST_S", 0.0)
    monkeypatch.setattr(SessionCosts, "comparable", lambda self, graph: {"codegen", "onednn"})
    for name, value in (("LEAST_CALLS", 1), ("LEAST_CALLS_S", 0.0), ("SHARE_OF_CALLS", 1e6)):
        monkeypatch.setattr(behind_budget, name, value)
    config = {
        "backends": ["codegen", "onednn", "eager"],
        "cache": {"dir": str(tmp_path / "cache")},
        "background": {"cores": 1.0, "budget_s": 600},
    }
    torch._dynamo.reset()
    mixture = Mixture(load_config(config))
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256))
    compiled, x = torch.compile(model, backend=mixture, dynamic=False), torch.randn(64, 256)

    def call() -> None:
        time.sleep(0.01)  # the processor is the other process's meanwhile
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)

    settle(mixture, call, most=20_000)
    (environment,) = mixture._environments.values()
    graphs = mixture.report().to_dict()["graphs"]
    happened = [item for graph in graphs for item in graph["selection"]["happened"]]
    assert environment.background.standing().used_s > 0.0, "another process worked"
    assert happened and all(item["change"] != "out" for item in happened)
    mixture.reset()
