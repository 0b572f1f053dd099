"""Measuring by range: each range is tuned once, with values that really came, and keeps its decision in every mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from regime_cases import LINES, WIDTH, BySize, named, regimes_of
from stand_in_backends import Packer
from torch import nn

from mixbackend.contracts import Plan
from mixbackend.contracts.region_text import read_region_text
from mixbackend.cost import costs as costs_module
from mixbackend.plan.choice import Choice
from mixbackend.select import tuner
from mixbackend.select.by_range import at_sizes
from mixbackend.select.candidates import find_candidates, in_layouts
from mixbackend.select.decision import MEASURED, Decision, Trial


class Stopwatch:
    """In place of a race: finds, against the estimates, the backend for large sizes faster on small ones and back."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.keys: list[str] = []
        self.texts: list[str] = []
        self.values: list[list[Any]] = []
        self.beside: list[set[frozenset[str]]] = []

    def __call__(
        self, captured: Any, subject: Any, values: Sequence[Any], environment: Any, beside: Sequence[Choice] = ()
    ) -> Decision:
        given = [values[place] for place in subject.inputs]
        rows = max(value.shape[0] for value in given if isinstance(value, torch.Tensor))
        self.rows.append(rows)
        self.keys.append(subject.key)
        self.texts.append(subject.text)
        self.values.append(given)
        graphs = in_layouts(*tuner.placeable(captured, environment))
        place = environment.planner.place
        others = {owners_of(place(graphs["as_traced"], choice=choice)) for choice in beside}
        candidates = find_candidates(graphs, environment.planner, beside).values()
        assert others <= {
            owners_of(environment.planner.place(graphs["as_traced"], choice=item.choice)) for item in candidates
        }
        self.beside.append(others)
        choice = Choice(single="large" if rows < 200 else "small")
        decision = Decision(choice, (Trial(choice, 1.0, MEASURED, "", (1.0,)),))
        environment.storage.database.set_decision(subject.key, decision.to_dict())
        return decision


def owners_of(plan: Plan) -> frozenset[str]:
    return frozenset(region.backend for region in plan.regions)


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    watch = Stopwatch()
    monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: BySize(lines=LINES))
    monkeypatch.setattr(tuner, "why_untunable", lambda environment: "")
    monkeypatch.setattr(tuner, "tune", watch)
    return watch


def owners(mixture: Any) -> list[set[str]]:
    return [{region["backend"] for region in regime["regions"]} for regime in regimes_of(mixture)]


@pytest.mark.parametrize("weights", ["auto", "live"])
def test_each_range_is_measured_at_sizes_that_came(make_mixture: Any, stopwatch: Stopwatch, weights: str) -> None:
    packers = [named(Packer, name) for name in ("small", "large")]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).eval()
    calls = (8, 9, 3000, 7, 4000)

    def run(mode: str) -> Any:
        torch._dynamo.reset()
        mixture = make_mixture(*packers, weights=weights, search={"mode": mode})
        compiled = torch.compile(model, backend=mixture, dynamic=True)
        with torch.no_grad():
            for rows in calls:
                value = torch.randn(rows, WIDTH)
                torch.testing.assert_close(compiled(value), model(value))
        return mixture

    measured = run("measure")
    assert stopwatch.rows == [8, 3000]
    assert owners(measured) == [{"large"}, {"small"}], "what was measured counts, not what was estimated"
    assert len(set(stopwatch.keys)) == 2
    assert stopwatch.beside == [set(), {frozenset({"large"})}], "a plan that runs already is a candidate elsewhere"
    assert measured.report().events == (), "and fits there"
    assert [regime["tuning"]["chosen"] for regime in regimes_of(measured)] == ["large", "small"]
    for text, values in zip(stopwatch.texts, stopwatch.values, strict=True):
        region = read_region_text(text)
        assert len(region.inputs) == len(values), "weights come as they are given to the whole graph"
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        for parameter in model.parameters():
            assert any(value.shape == parameter.shape and torch.equal(value, parameter) for value in tensors)

    estimated = run("estimate")
    assert stopwatch.rows == [8, 3000], "remembered"
    assert owners(estimated) == [{"large"}, {"small"}]


def test_a_decision_does_not_reach_other_sizes(make_mixture: Any, stopwatch: Stopwatch) -> None:
    packers = [named(Packer, name) for name in ("small", "large")]

    def function(value: torch.Tensor) -> torch.Tensor:
        return (value.sin() + 1).cos()

    def run(mode: str, rows: int) -> Any:
        torch._dynamo.reset()
        mixture = make_mixture(*packers, search={"mode": mode})
        compiled = torch.compile(function, backend=mixture)
        value = torch.randn(rows, WIDTH)
        torch._dynamo.mark_dynamic(value, 0)
        torch.testing.assert_close(compiled(value), function(value))
        return mixture

    run("measure", 8)
    later = run("estimate", 3000)
    assert stopwatch.rows == [8]
    assert owners(later)[1] == {"large"}, "by estimates: nothing was measured at such sizes"
    run("measure", 3000)
    assert stopwatch.rows == [8, 3000]


TEXT = """mixbackend-region 1 inference
%0 = input(symbol, s0)
%1 = input(activation, tensor(float32, [s0, add(mul(2, s0), 1), s1], [1, 1, 1], "cpu"))
%2 = input(activation, tensor(float32, [4], [1], "cpu"))
symbol(s0, size, 2, none)
symbol(s1, size, 2, none)
# hint s0 6
# hint s1 7
"""


def test_hints_become_the_sizes_of_the_values() -> None:
    changed = at_sizes(TEXT, [20, torch.empty(20, 41, 30), torch.empty(4)])
    assert changed == TEXT.replace("hint s0 6", "hint s0 20").replace("hint s1 7", "hint s1 30")
