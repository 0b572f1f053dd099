"""Attention with functions of its own goes whole to inductor, with ops around it; its results are eager's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from mixbackend.backends.eager import EagerBackend
from mixbackend.backends.inductor import InductorBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.contracts import Supported, Unsupported
from mixbackend.cost.device_priors import prior_device
from mixbackend.cost.priors import prior_rates
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.registry import isolated_registry

LENGTH = 512
DOCUMENTS = torch.arange(LENGTH) // 120
BIAS = torch.linspace(-1, 1, 4)
ATTENTION = "higher_order.flex_attention"

Condition = Callable[[Any, Any, Any, Any], Any]
MASKS: dict[str, Condition | None] = {
    "all": None,
    "causal": lambda batch, head, row, column: row >= column,
    "window": lambda batch, head, row, column: (row >= column) & (row - column < 40),
    "documents": lambda batch, head, row, column: DOCUMENTS[row] == DOCUMENTS[column],
}


def bare(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any) -> torch.Tensor:
    return flex_attention(query, key, value, block_mask=mask)


def biased(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any) -> torch.Tensor:
    """With a function of the scores that reads a tensor, and ops before and behind."""
    scores = lambda score, batch, head, row, column: score + BIAS[head]  # noqa: E731
    return flex_attention(query.sin(), key, value, score_mod=scores, block_mask=mask) * 2


def operands(length: int = LENGTH) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, 4, length, 32) for _ in range(3)]


def mask_of(name: str) -> Any:
    condition = MASKS[name]
    return None if condition is None else create_block_mask(condition, None, None, LENGTH, LENGTH, device="cpu")


@pytest.fixture
def mixture() -> Iterator[Mixture]:
    with isolated_registry(InductorBackend(), EagerBackend()):
        settings = {"backends": ["inductor", "eager"], "on_failure": "raise", "select": "off"}
        yield Mixture(load_config(settings))


def owners(mixture: Mixture) -> set[str]:
    """Who runs attention."""
    placed = [(record.graph, region) for record in mixture.report().graphs for region in record.plan.regions]
    return {
        region.backend for graph, region in placed for name in region.nodes if graph.node_by_name[name].op == ATTENTION
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("program", [bare, biased], ids=lambda program: program.__name__)
def test_inductor_runs_it_as_eager_does(mixture: Mixture, program: Callable[..., torch.Tensor], name: str) -> None:
    mask, given = mask_of(name), operands()
    with torch.no_grad():
        result = torch.compile(program, backend=mixture, fullgraph=True)(*given, mask)
        expected = program(*(value.double() for value in given), mask).float()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert owners(mixture) == {"inductor"}
    assert not mixture.report().events


@pytest.mark.nightly
def test_sizes_may_be_symbols(mixture: Mixture) -> None:
    compiled = torch.compile(bare, backend=mixture, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for length in (LENGTH, 128, 384):
            given = operands(length)
            torch.testing.assert_close(compiled(*given, None), bare(*given, None), rtol=1e-4, atol=1e-5)


def attention_view(mixture: Mixture) -> Any:
    with torch.no_grad():
        torch.compile(bare, backend=mixture)(*operands(), None)
    (record,) = mixture.report().graphs
    (node,) = (node for node in record.graph.placed_nodes if node.op == ATTENTION)
    return record.graph.view(node.name)


def test_what_inductor_cannot_run_on_processors_is_refused(mixture: Mixture) -> None:
    view = attention_view(mixture)
    assert isinstance(InductorBackend().judge(view), Supported)
    for phase in ("forward", "backward"):
        refusal = InductorBackend().judge(replace(view, phase=phase))
        assert isinstance(refusal, Unsupported) and refusal.code == "declined"


def test_scores_cost_no_memory_traffic_where_it_is_taken_whole(mixture: Mixture) -> None:
    view, device, backend = attention_view(mixture), prior_device("cpu"), InductorBackend()
    rates = {"inductor": prior_rates(backend, device)}
    whole = RooflineCostModel(device, rates, whole={"inductor": backend.traits().takes_whole})
    by_ops = RooflineCostModel(device, rates)
    products = [item for body in view.node.bodies for item in body.views if item.op == "aten.bmm.default"]
    assert len(products) == 2
    moved = sum(whole.traffic("inductor", item) for item in products)
    assert by_ops.op("inductor", view).seconds > whole.op("inductor", view).seconds + moved / 2
