"""Ranks of a job run one plan of a graph, whatever their costs, databases and sizes; nobody waits without bound."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from flat_costs import FlatCosts
from ranks_here import as_rank, owners, run, told
from regime_cases import LINES, BySize, function, named, regimes_of, value_of
from stand_in_backends import Loopback

from mixbackend.contracts import Estimate
from mixbackend.cost import costs as costs_module
from mixbackend.plan.choice import Choice
from mixbackend.select import tuner
from mixbackend.select.decision import MEASURED, Decision, Trial

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this torch has no torch.distributed")


def test_the_first_plan_is_everybodys(make: Any, backends: Any, prefer: Any, store: Any) -> None:
    plans = []
    for rank, cheapest in enumerate(("small", "large")):
        prefer(cheapest)
        alone = make(rank + 2, *backends)
        run(alone)
        assert owners(alone) == {cheapest} and told(alone) == []
        with as_rank(rank, store):
            mixture = make(rank, *backends)
            run(mixture)
        plans.append(owners(mixture))
    assert plans == [{"small"}, {"small"}]
    assert len(told(mixture)) == 1 and told(mixture)[0].startswith("does what rank 0 decided")


def test_rules_about_modules_are_of_these_modules(make: Any, backends: Any, prefer: Any, store: Any) -> None:
    """Two graphs of equal text, whose modules the user told apart."""
    prefer("small")
    rules = [{"match": {"module": "*second*"}, "prefer": "large", "factor": 1e-9}]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Tanh(), torch.nn.Tanh()

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            value = self.first(value)
            torch._dynamo.graph_break()
            return self.second(value)

    with as_rank(0, store):
        mixture = make(0, *backends, rules=rules)
        torch.compile(Model(), backend=mixture)(torch.randn(8))
    assert [owners(mixture, graph) for graph in range(2)] == [{"small"}, {"large"}]


def test_another_job_plans_for_itself(make: Any, backends: Any, prefer: Any) -> None:
    for cheapest in ("small", "large"):
        prefer(cheapest)
        with as_rank(0, distributed.HashStore()):
            mixture = make(0 if cheapest == "small" else 1, *backends)
            run(mixture)
        assert owners(mixture) == {cheapest} and told(mixture) == []


def test_a_group_that_comes_after_the_first_compile(make: Any, backends: Any, prefer: Any, store: Any) -> None:
    prefer("small")
    with as_rank(0, store):
        run(make(0, *backends))
    prefer("large")
    mixture = make(1, *backends)
    torch.compile(torch.tan, backend=mixture)(torch.randn(4))
    with as_rank(1, store):
        run(mixture)
    torch.compile(torch.exp, backend=mixture)(torch.randn(4))
    assert [owners(mixture, graph) for graph in range(3)] == [{"large"}, {"small"}, {"large"}]


def test_forward_and_backward_are_split_alike(make: Any, prefer: Any, store: Any) -> None:
    """What is saved follows from who fuses: a rank that would fuse saves what the first rank saves."""

    def chain(value: torch.Tensor) -> torch.Tensor:
        return (value.sin().cos() * 2).sin()

    class Fusing(Loopback):
        name = "large"

        def traits(self) -> Any:
            return dataclasses.replace(super().traits(), fused=frozenset({("pointwise", "pointwise")}))

    chosen = named(Loopback, "small"), Fusing()
    found: dict[str, list[Any]] = {}
    for rank, cheapest in enumerate(("small", "large")):
        prefer(cheapest)

        def trained(mixture: Any) -> list[Any]:
            value = torch.randn(64, 64, requires_grad=True)
            torch.compile(chain, backend=mixture)(value).sum().backward()
            expected = value.detach().clone().requires_grad_()
            chain(expected).sum().backward()
            torch.testing.assert_close(value.grad, expected.grad)
            graphs = mixture.report().to_dict()["graphs"]
            return [[(region["backend"], region["ops"]) for region in graph["regions"]] for graph in graphs]

        alone = trained(make(rank + 2, *chosen))
        with as_rank(rank, store):
            mixture = make(rank, *chosen)
            found[cheapest] = [alone, trained(mixture)]
    assert found["small"][0] != found["large"][0], "or nothing is shown"
    assert found["small"][1] == found["large"][1] == found["small"][0]
    assert next(event.graph for event in mixture.report().events if event.kind == "ranks") == "joint"


def test_what_a_database_decided_is_agreed_on(
    make: Any, backends: Any, prefer: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1's machine has measured that the other backend is faster; rank 0's has not."""

    def tuned(captured: Any, task: Any, values: Any, environment: Any, beside: Any = ()) -> Decision:
        choice = Choice(single="large")
        decision = Decision(choice, (Trial(choice, 1.0, MEASURED, "", (1.0,)),))
        environment.storage.database.set_decision(task.key, decision.to_dict())
        return decision

    prefer("small")
    monkeypatch.setattr(tuner, "why_untunable", lambda environment: "")
    monkeypatch.setattr(tuner, "tune", tuned)
    run(make(1, *backends, search={"mode": "measure"}))
    decided = make(1, *backends)
    run(decided)
    assert owners(decided) == {"large"}
    for order in ((0, 1), (1, 0)):
        shared, ran = distributed.HashStore(), []
        for rank in order:
            with as_rank(rank, shared):
                mixture = make(rank, *backends)
                run(mixture)
                ran.append(owners(mixture))
        assert ran == [{"small"}] * 2 if order[0] == 0 else [{"large"}] * 2
    monkeypatch.setattr(tuner, "tune", lambda *arguments: pytest.fail("measured"))
    with as_rank(0, store):
        run(make(0, *backends))
    with as_rank(1, store):
        mixture = make(3, *backends, search={"mode": "measure"})
        run(mixture)
    assert owners(mixture) == {"small"}, "what stands is not measured any more"


def test_ranges_of_sizes_are_agreed_on(make: Any, backends: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks with other costs that are called with other sizes first: the same ranges, in each the same plan."""
    other = LINES | {"small": (1e-6, 2e-9)}
    ranges = []
    for rank, (lines, sizes) in enumerate([(LINES, (8, 3000)), (other, (3000, 8, 400))]):
        costs = BySize(lines=lines)
        monkeypatch.setattr(costs_module, "cost_model", lambda *_, costs=costs, **__: costs)
        with as_rank(rank, store):
            mixture = make(rank, *backends)
            compiled = torch.compile(function, backend=mixture)
            for rows in sizes:
                value = value_of(rows)
                torch.testing.assert_close(compiled(value), function(value))
        found = regimes_of(mixture)
        ranges.append([(item["first"], item["last"], item["regions"][0]["backend"]) for item in found])
        assert [item["built"] for item in found] == [True, True]
    assert ranges[0] == ranges[1] and [backend for *_, backend in ranges[0]] == ["small", "large"]
    assert not [event for event in mixture.report().events if event.kind == "fallback"]


def test_ranks_that_are_configured_otherwise_do_not_meet(make: Any, backends: Any, prefer: Any, store: Any) -> None:
    prefer("small")
    with as_rank(0, store):
        run(make(0, *backends))
    with as_rank(1, store):
        mixture = make(1, backends[1], backends=None)
        run(mixture)
        assert owners(mixture) == {"large"}
    # It is configured otherwise: ranks that are to differ do, in silence.
    assert told(mixture) == []


def test_images_are_laid_out_alike(make: Any, backends: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)).eval()
    layouts = []
    for rank, channels_last in enumerate((True, False)):
        costs = ByLayout(channels_last=channels_last, seconds={"eager": 1.0})
        monkeypatch.setattr(costs_module, "cost_model", lambda *_, costs=costs, **__: costs)
        with as_rank(rank, store), torch.no_grad():
            mixture = make(rank, backends[0], weights="live")
            value = torch.randn(2, 4, 12, 12)
            torch.testing.assert_close(torch.compile(model, backend=mixture)(value), model(value))
        layouts.append(mixture.report().to_dict()["graphs"][0]["layout"]["chosen"])
    assert layouts == ["channels_last"] * 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByLayout(FlatCosts):
    """Convolutions like one of the layouts."""

    channels_last: bool

    def op(self, backend: str, view: Any) -> Estimate:
        if backend == "eager" or view.op != "aten.convolution.default":
            return super().op(backend, view)
        liked = (view.output_tensors[0].stride[1] == 1) is self.channels_last
        return Estimate(1e-5 if liked else 1.0, "prior")
