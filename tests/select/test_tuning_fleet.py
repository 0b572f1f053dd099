"""One machine tunes for its fleet: decisions are found through the remote cache, and only where they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mixbackend
from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import load_config
from mixbackend.graph.trace import trace_graph
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.environment import Environment
from mixbackend.select import tuner
from mixbackend.select.decision import MEASURED, UNTUNED, Decision, Trial
from mixbackend.storage.background_io import finish

DECISION = Decision(Choice(single="onednn"), (Trial(DEFAULT, 1.0, MEASURED, "", (2.0,)),))


def machine(tmp_path: Path, name: str, **settings: object) -> Environment:
    cache = {"dir": str(tmp_path / name), "remote": f"file://{tmp_path}/fleet"}
    return open_environment(load_config({"backends": ["onednn", "eager"], "cache": cache, **settings}))


def captured() -> tuner.Captured:
    module, _ = trace_graph(lambda a, b: torch.relu(a @ b), [torch.randn(4, 8), torch.randn(8, 16)])
    return tuner.Captured(module, "inference", {}, "g")


def decide(environment: Environment) -> None:
    task = tuner.task_of(captured(), environment)
    environment.storage.database.set_decision(
        task.key, DECISION.to_dict(), device=task.device, fingerprints=environment.fingerprints
    )
    finish(10)


def known(environment: Environment) -> Decision:
    task = tuner.task_if_any(captured(), environment)
    assert task is not None, "a fleet may know what this machine never tuned"
    return tuner.remembered(task, environment)


def test_a_decision_of_one_machine_holds_on_another(tmp_path: Path) -> None:
    decide(machine(tmp_path, "one"))
    assert known(machine(tmp_path, "two")) == DECISION
    alone = open_environment(load_config({"backends": ["onednn", "eager"], "cache": {"dir": str(tmp_path / "two")}}))
    assert known(alone) == DECISION, "it was kept"


def test_it_does_not_hold_on_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decide(machine(tmp_path, "one"))
    monkeypatch.setattr(Environment, "device", lambda self, graph: f"{graph.device_type} of another make")
    assert known(machine(tmp_path, "two")) is UNTUNED


def test_it_does_not_hold_with_other_backends_or_rules(tmp_path: Path) -> None:
    decide(machine(tmp_path, "one"))
    assert known(machine(tmp_path, "two", backends=["codegen", "onednn", "eager"])) is UNTUNED
    rules = [{"match": {"op": "aten.mm"}, "forbid": "onednn"}]
    assert known(machine(tmp_path, "three", rules=rules)) is UNTUNED


def test_artifacts_reach_other_machines(tmp_path: Path) -> None:
    results, reports = [], []
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
    value = torch.randn(4, 8)
    for name in ("one", "two"):
        backend = mixbackend.auto(
            {
                "backends": ["codegen", "eager"],
                "rules": [{"match": {"op": "aten.gelu"}, "require": "codegen"}],
                "cache": {"dir": str(tmp_path / name), "remote": f"file://{tmp_path}/fleet"},
            }
        )
        torch._dynamo.reset()
        with torch.no_grad():
            results.append(torch.compile(module, backend=backend)(value))
        finish(10)
        reports.append([region for graph in backend.report().to_dict()["graphs"] for region in graph["regions"]])
    assert torch.equal(*results)
    compiled = [[region["cached"] for region in regions if region["backend"] != "eager"] for regions in reports]
    assert compiled[0] and not any(compiled[0]) and all(compiled[1]), compiled
