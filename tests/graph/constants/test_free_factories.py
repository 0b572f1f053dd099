"""Memory that is made like another tensor depends on nothing, and what is made of it is computed once."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.graph.constants.factories import free_factories

aten = torch.ops.aten

FACTORIES = {
    "new_zeros": lambda x: x.new_zeros(3, 2),
    "new_ones": lambda x: x.new_ones(2, dtype=torch.int64),
    "new_full": lambda x: x.new_full((2, 2), 3.5),
    "zeros_like": lambda x: torch.zeros_like(x),
    "ones_like": lambda x: torch.ones_like(x, dtype=torch.bool),
    "full_like": lambda x: torch.full_like(x, -2.0),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_they_depend_on_nothing_afterwards(name: str) -> None:
    value = torch.randn(3, 4)
    module = make_fx(FACTORIES[name], tracing_mode="fake")(value)
    expected = module(value)
    assert free_factories(module) == 1
    (made,) = [node for node in module.graph.nodes if node.op == "call_function"]
    assert made.all_input_nodes == []
    torch.testing.assert_close(module(value), expected, rtol=0.0, atol=0.0)


def test_memory_in_another_order_stays_what_it_was() -> None:
    value = torch.randn(3, 4).t()
    module = make_fx(torch.zeros_like, tracing_mode="fake")(value)
    assert free_factories(module) == 0


def test_symbolic_sizes_stay() -> None:
    module = make_fx(torch.zeros_like, tracing_mode="symbolic")(torch.randn(3, 4))
    assert free_factories(module) == 0


def test_a_mask_that_every_call_made_anew_is_a_constant(make_mixture, packer):
    def function(value):
        mask = value.new_zeros(4, 4)
        mask[1:, 2:] = 1
        return torch.nn.functional.linear(value, weight) + mask.masked_fill(mask != 0, -100.0)

    model = torch.nn.Linear(4, 4, bias=False).eval()
    weight = model.weight
    model.forward = function
    mixture = make_mixture(packer)
    with torch.no_grad():
        value = torch.randn(4, 4)
        torch.testing.assert_close(torch.compile(model, backend=mixture)(value), function(value))
    ops = {op for graph in mixture.report().to_dict()["graphs"] for region in graph["regions"] for op in region["ops"]}
    assert ops
    assert not any(word in op for op in ops for word in ("fill", "zeros", "scatter", "lift")), ops
