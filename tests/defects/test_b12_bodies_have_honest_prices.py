"""B12: an op that carries subgraphs costs what the ops of these cost, and the report says who runs them and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

from mixbackend.backends.eager import EagerBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.contracts import CostModel, OpView
from mixbackend.cost import costs as costs_module
from mixbackend.cost.device_priors import prior_device
from mixbackend.cost.priors import prior_rates
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.registry import isolated_registry
from mixbackend.reporting.records import GraphRecord

DEVICE = prior_device("cpu")
COSTS: CostModel = RooflineCostModel(DEVICE, {"eager": prior_rates(EagerBackend(), DEVICE)})


def block(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ x)


def conditional(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, block, lambda x: x + 1, (x,))


def looped(x: torch.Tensor) -> torch.Tensor:
    count = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, y: i < 30, lambda i, y: (i + 1, block(y)), (count, x))[1]


def scanned(x: torch.Tensor) -> torch.Tensor:
    return scan(lambda carry, row: (block(carry) + row, row * 2), x, torch.stack([x] * 20))[0]


@torch.compiler.nested_compile_region
def region(x: torch.Tensor) -> torch.Tensor:
    return block(x)


def repeated(x: torch.Tensor) -> torch.Tensor:
    return region(region(x)) + 1


def attended(x: torch.Tensor) -> torch.Tensor:
    query = x.reshape(1, 4, 64, 16)
    return flex_attention(query, query, query, score_mod=lambda score, b, h, q, k: torch.where(q >= k, score, -9.0))


@pytest.fixture
def report_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[GraphRecord, str]]:
    monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: COSTS)

    def compiled(function: Callable[..., Any], *given: Any, backends: Sequence[str] = ("eager",)) -> Any:
        torch._dynamo.reset()
        with isolated_registry(EagerBackend()), torch.no_grad():
            mixture = Mixture(load_config({"backends": list(backends), "cache": {"dir": str(tmp_path)}}))
            torch.testing.assert_close(torch.compile(function, backend=mixture)(*given), function(*given))
            report = mixture.report()
        graph = report.graphs[0]
        torch._dynamo.reset()
        return graph, str(report)

    return compiled


def seconds_of(record: GraphRecord) -> float:
    """What the ops with bodies are estimated to take together."""
    views = [record.graph.view(node.name) for node in record.graph.placed_nodes if node.op.startswith("higher_order.")]
    assert views
    return sum(COSTS.op("eager", view).seconds for view in views)


def block_seconds(x: torch.Tensor) -> float:
    """The same of a block by itself."""
    _, graph = trace_graph(block, [x])
    views: list[OpView] = [graph.view(node.name) for node in graph.placed_nodes]
    model = COSTS
    assert isinstance(model, RooflineCostModel)
    return sum(model.op("eager", view).seconds + model.traffic("eager", view) for view in views)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("function", "runs"),
    [(conditional, 1.0), (looped, 10.0), (scanned, 20.0), (repeated, 2.0)],
    ids=["cond", "while_loop", "scan", "invoke_subgraph"],
)
def test_it_costs_what_its_bodies_cost(report_of: Any, function: Callable[..., Any], runs: float) -> None:
    x = torch.randn(128, 128) / 12
    record, _ = report_of(function, x)
    assert 1.0 <= seconds_of(record) / (runs * block_seconds(x)) < 2.0
    assert record.plan.estimated_s >= runs * block_seconds(x)


def test_attention_with_functions_costs_its_scores(report_of: Any) -> None:
    record, _ = report_of(attended, torch.randn(1, 4, 64, 16))
    (node,) = (item for item in record.graph.placed_nodes if item.op == "higher_order.flex_attention")
    (body,) = node.bodies
    assert [view.op for view in body.views].count("aten.bmm.default") == 2
    scores = next(view for view in body.views if view.op == "aten._softmax.default").output_tensors[0]
    assert scores.elements() == 4 * 64 * 64
    assert any(view.op.startswith("aten.where") and view.output_tensors[0] == scores for view in body.views)


def test_the_report_says_who_runs_bodies_and_what_is_assumed(report_of: Any) -> None:
    _, text = report_of(looped, torch.randn(64, 64) / 8)
    line = next(line for line in text.splitlines() if "bodies" in line)
    assert "while_loop: eager calls their bodies, which are graphs of their own: inference-0.while_loop_cond" in line
    assert "loops that end by their values count as 10 runs" in " ".join(text.split())
    _, text = report_of(block, torch.randn(64, 64))
    assert "bodies" not in text
