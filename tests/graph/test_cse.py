"""Equal ops become one where nobody can tell, and stay apart where somebody could."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.graph.cse import merge_common_ops
from mixbackend.graph.normalize import normalize

aten = torch.ops.aten


def merged(function, *inputs):
    module = make_fx(function)(*inputs)
    before = module(*inputs)
    count = merge_common_ops(module)
    module.graph.lint()
    module.recompile()
    after = module(*inputs)
    torch.testing.assert_close(after, before, rtol=0.0, atol=0.0)
    return count, module, after


def test_masks_that_every_layer_makes_anew_are_made_once() -> None:
    def layers(value, mask):
        for _ in range(3):
            bias = torch.where(mask, torch.zeros(()), torch.full((), float("-inf"))).unsqueeze(0).expand(2, 4, 4)
            value = torch.softmax(value + bias, -1)
        return value

    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    count, module, _ = merged(layers, torch.randn(2, 4, 4), mask)
    assert count == 2 * 5
    assert len(module.graph.find_nodes(op="call_function", target=aten.where.self)) == 1


def test_chains_of_equal_ops_become_one_chain() -> None:
    count, _, _ = merged(lambda v: (v.sin().cos() + v.sin().cos().exp()).sum(), torch.randn(8))
    assert count == 2


def test_numbers_of_other_types_and_values_differ() -> None:
    def function(value):
        whole = value.to(torch.int64)
        return whole * 1 + (whole * 1.0 + value * 0.0 + value * -0.0).to(torch.int64)

    count, _, _ = merged(function, torch.randn(8))
    assert count == 0


def test_random_ops_stay() -> None:
    module = make_fx(lambda v: (aten.rand_like(v) - aten.rand_like(v)).abs().sum())(torch.randn(64))
    assert merge_common_ops(module) == 0
    assert module(torch.randn(64)) > 1.0


def test_uninitialised_memory_is_not_shared() -> None:
    module = make_fx(lambda v: aten.empty_like(v).copy_(v) + aten.empty_like(v).copy_(v * 2))(torch.randn(4))
    merge_common_ops(module)
    assert len(module.graph.find_nodes(op="call_function", target=aten.empty_like.default)) == 2


def test_outputs_keep_memory_of_their_own() -> None:
    def function(value):
        return value.exp(), value.exp(), value.exp().view(2, 4), value.sin().t(), value.sin().t()

    count, _, results = merged(function, torch.randn(8))
    assert count == 0
    assert len({result.data_ptr() for result in results}) == 5


def test_what_is_returned_may_also_be_what_others_read() -> None:
    count, _, (first, second) = merged(lambda v: (v.exp(), (v.exp() + 1).neg()), torch.randn(8))
    assert count == 1
    assert first.data_ptr() != second.data_ptr()


def test_parts_of_several_outputs() -> None:
    def function(value):
        return value.max(0)[0] * value.max(0)[0] + value.max(0)[1]

    _, module, _ = merged(function, torch.randn(4, 4))
    assert len(module.graph.find_nodes(op="call_function", target=aten.max.dim)) == 1


def test_writes_into_inputs_are_kept_in_order() -> None:
    def function(value, state):
        state.add_(1)
        one = value + state
        state.add_(1)
        return one * (value + state)

    value, state = torch.randn(4), torch.zeros(4)
    module = make_fx(function)(value, state)
    assert merge_common_ops(module) == 0
    normalize(module)
    mine, theirs = torch.zeros(4), torch.zeros(4)
    torch.testing.assert_close(module(value, mine), function(value, theirs))
    torch.testing.assert_close(mine, theirs)
