"""Where plans are held against nothing: switched off, under deterministic algorithms, in a job of several ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stand_in_backends import settle

from mixbackend.compile import first_calls
from mixbackend.configuration import load_config
from mixbackend.select.live.steps import SWITCH, Situation

pytestmark = pytest.mark.usefixtures("worth_comparing", "tried_at_once")

X = torch.randn(8, 8)


def model(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1.0).relu()


def compiled_backends(mixture: Any) -> set[str]:
    with torch.no_grad():
        compiled = torch.compile(model, backend=mixture, dynamic=False)
        settle(mixture, lambda: torch.testing.assert_close(compiled(X), model(X)))
    (graph,) = mixture.report().graphs
    return {region.backend for region in graph.plan.regions}


def details(mixture: Any) -> list[str]:
    return [event.detail for event in mixture.report().events if event.kind == "tuning"]


def test_switched_off_by_the_configuration(make_mixture, sleeper):
    quick = sleeper("quick", 0.0)
    mixture = make_mixture(sleeper("slow", 0.005), quick, select="off")
    assert compiled_backends(mixture) == {"slow"}
    assert (quick.compiled, details(mixture)) == ([], [])


def test_switched_off_by_the_environment(make_mixture, sleeper, monkeypatch):
    monkeypatch.setenv(SWITCH, "off")
    mixture = make_mixture(sleeper("slow", 0.005), sleeper("quick", 0.0))
    assert compiled_backends(mixture) == {"slow"} and details(mixture) == []
    monkeypatch.setenv(SWITCH, "auto")
    torch._dynamo.reset()
    assert compiled_backends(make_mixture(sleeper("slow", 0.005), sleeper("quick", 0.0))) == {"quick"}


def test_deterministic_algorithms_run_the_plan_by_estimates(make_mixture, sleeper):
    mixture = make_mixture(sleeper("slow", 0.005), sleeper("quick", 0.0))
    torch.use_deterministic_algorithms(True)
    try:
        assert compiled_backends(mixture) == {"slow"}
    finally:
        torch.use_deterministic_algorithms(False)
    assert details(mixture) == ["not compared with others: torch is told to use deterministic algorithms"]


def test_ranks_run_the_plan_by_estimates(make_mixture, sleeper, monkeypatch):
    monkeypatch.setattr(first_calls, "situation", lambda off: Situation(off, ranks=2))
    mixture = make_mixture(sleeper("slow", 0.005), sleeper("quick", 0.0))
    assert compiled_backends(mixture) == {"slow"}
    assert "one of several ranks" in details(mixture)[0]


def test_yaml_readers_turn_off_into_a_flag(tmp_path):
    (tmp_path / "mixture.yaml").write_text("select: off\n")
    assert load_config(str(tmp_path / "mixture.yaml")).select == "off"
    assert load_config(None).select == "auto"
