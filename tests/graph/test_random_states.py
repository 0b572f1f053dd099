"""Checkpointed ops that draw no numbers run without a generator's state, and those that draw keep theirs."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.fx
from torch import Tensor, nn
from torch._prims import rng_prims
from torch.utils.checkpoint import checkpoint

from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.graph.random_states import applies, unwrap_what_draws_nothing

aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default


def wrapped(wrapper: str, target: Any, *options: Any) -> torch.fx.GraphModule:
    """A graph of one wrapped op, as torch's partitioner writes it: what is wrapped has no stated value."""
    graph, mode = torch.fx.Graph(), torch._subclasses.FakeTensorMode()
    values = [graph.placeholder(name) for name in "qkv"]
    for value in values:
        value.meta["val"] = mode.from_tensor(torch.randn(1, 2, 8, 16))
    state, arguments = graph.placeholder("state"), (*values, *options) if target is ATTENTION else (values[0], *options)
    if wrapper == "graphsafe":
        node = graph.call_function(rng_prims.graphsafe_run_with_rng_state, (target, *arguments), {"rng_state": state})
    elif wrapper == "with":
        node = graph.call_function(rng_prims.run_with_rng_state, (state, target, *arguments))
    else:
        saved = graph.call_function(rng_prims.run_and_save_rng_state, (target, *arguments))
        node = graph.call_function(operator.getitem, (saved, 1))
        kept = graph.call_function(operator.getitem, (saved, 0))
    result = graph.call_function(operator.getitem, (node, 0))
    graph.output((result, kept) if wrapper == "save" else (result,))
    return torch.fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("wrapper", ["save", "with", "graphsafe"])
def test_attention_without_dropout_is_an_op_like_others(wrapper: str) -> None:
    module = wrapped(wrapper, ATTENTION, 0.0, True)
    assert applies(module) and unwrap_what_draws_nothing(module) == 1
    module.graph.lint()
    module.recompile()
    (node,) = module.graph.find_nodes(op="call_function", target=ATTENTION)
    assert node.meta["val"][0].shape == (1, 2, 8, 16)
    values = [torch.randn(1, 2, 8, 16) for _ in range(3)]
    before = torch.get_rng_state()
    result, *kept = module(*values, before)
    assert torch.equal(result, ATTENTION(*values, 0.0, True)[0])
    assert torch.equal(torch.get_rng_state(), before) and all(torch.equal(item, before) for item in kept)


@pytest.mark.parametrize("wrapper", ["save", "with", "graphsafe"])
def test_what_draws_numbers_keeps_its_state(wrapper: str) -> None:
    module = wrapped(wrapper, aten.native_dropout.default, 0.5, True)
    before = str(module.graph)
    assert applies(module) and unwrap_what_draws_nothing(module) == 0 and str(module.graph) == before


class Block(nn.Module):
    """Attention and dropout, checkpointed."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out, self.dropout = nn.Linear(32, 96), nn.Linear(32, 32), dropout

    def inner(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + nn.functional.dropout(self.out(attended.transpose(1, 2).flatten(-2)), self.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)  # type: ignore[no-any-return]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointed_attention_has_eagers_gradients_and_leaves_eagers_generator(dropout: float) -> None:
    mixture = Mixture(load_config({"backends": ["codegen", "eager"], "on_failure": "raise", "select": "off"}))
    torch.manual_seed(0)
    block, x = Block(dropout), torch.randn(2, 8, 32, requires_grad=True)
    compiled = torch.compile(block, backend=mixture)

    def outcome(function: Any) -> list[Tensor]:
        torch.manual_seed(1)
        result = function(x)
        (gradient,) = torch.autograd.grad(result.square().sum(), x)
        return [result.detach(), gradient, torch.rand(3)]

    for mine, eager in zip(outcome(compiled), outcome(block), strict=True):
        torch.testing.assert_close(mine, eager)
    held = {node.op for graph in mixture.report().graphs for node in graph.graph.nodes}
    assert any("_scaled_dot_product" in name for name in held)
    assert any("run_with_rng_state" in name for name in held) == (dropout > 0)
