"""Results that autograd keeps through ``detach`` are computed again in the backward where that is cheaper."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch
import torch.nn.functional as functional
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.graph.views import read_through_detach

aten = torch.ops.aten
LOOPS = frozenset((one, other) for one in ("pointwise", "copy", "view") for other in ("pointwise", "copy", "view"))


@pytest.fixture
def mixture(make_mixture, loopback, monkeypatch):
    """All on a backend that fuses whatever is computed number by number."""
    traits = dataclasses.replace(loopback.traits(), fused=LOOPS)
    monkeypatch.setattr(type(loopback), "traits", lambda self: traits)
    return make_mixture(loopback)


def backward_ops(mixture):
    backward = mixture.report().to_dict()["graphs"][1]
    assert backward["phase"] == "backward"
    return Counter(op for region in backward["regions"] for op, count in region["ops"].items() for _ in range(count))


def gradients(function, values):
    leaves = [value.detach().clone().requires_grad_() for value in values]
    function(*leaves).float().sum().backward()
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_what_is_cheap_is_computed_again_from_fewer_bytes(mixture, name):
    """The argument has two bytes per number, the result four, and only its rounded copy is returned."""

    def function(value):
        return getattr(value.float(), name)().bfloat16()

    values = [torch.randn(64, 64, dtype=torch.bfloat16)]
    found = gradients(torch.compile(function, backend=mixture), values)
    torch.testing.assert_close(found, gradients(function, values))
    assert backward_ops(mixture)[f"aten.{name}.default"] == 1
    assert mixture.report().events == ()


def test_a_layer_that_writes_gelu_out_saves_what_its_products_read(mixture):
    """As in GPT-2 under autocast: the power and tanh are computed in float32, between two products in bfloat16."""
    kept: list[torch.Tensor] = []

    def gelu(value):
        wide = value.float()
        return (0.5 * wide * (1 + torch.tanh(0.8 * (wide + 0.044715 * wide.pow(3))))).bfloat16()

    def function(value, first, second):
        return gelu(value @ first) @ second

    values = [torch.randn(shape, dtype=torch.bfloat16) / 4 for shape in ((32, 16), (16, 64), (64, 16))]
    leaves = [value.clone().requires_grad_() for value in values]
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        result = torch.compile(function, backend=mixture)(*leaves)
    result.float().sum().backward()
    for leaf, expected in zip(leaves, gradients(function, values), strict=True):
        torch.testing.assert_close(leaf.grad, expected, rtol=2e-2, atol=2e-2)
    assert {tensor.dtype for tensor in kept} == {torch.bfloat16}
    # Beside the three leaves: what the first product returns, and what the second one reads.
    assert sum(tensor.numel() for tensor in kept if tensor.numel() == 32 * 64) == 2 * 32 * 64


def test_results_of_softmax_are_still_saved(mixture):
    layer = nn.Linear(8, 8)

    def function(value):
        return functional.softmax(layer(value), -1)

    values = [torch.randn(4, 8)]
    torch.testing.assert_close(gradients(torch.compile(function, backend=mixture), values), gradients(function, values))
    assert backward_ops(mixture)["aten._softmax.default"] == 0


def test_what_is_returned_is_made_by_the_op_that_made_it():
    def function(value):
        result = value.sin()
        kept = aten.detach(aten.detach(result))
        return result, kept, kept * 2

    module = make_fx(function)(torch.randn(3))
    value = torch.randn(3)
    expected = module(value)
    read_through_detach(module)
    torch.testing.assert_close(module(value), expected)
    (output,) = module.graph.find_nodes(op="output")
    assert [node.target for node in output.args[0]] == [aten.sin.default, aten.detach.default, aten.mul.Tensor]
    # One is left, where the graph returns it; the product reads the sine.
    assert len(module.graph.find_nodes(op="call_function", target=aten.detach.default)) == 1
    assert output.args[0][2].args[0].target is aten.sin.default
