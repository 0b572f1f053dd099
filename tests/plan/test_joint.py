"""What is saved for the backward depends on who owns the ops."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch
from torch import nn


def backward_ops(mixture):
    backward = mixture.report().to_dict()["graphs"][1]
    assert backward["phase"] == "backward"
    return Counter(op for region in backward["regions"] for op, count in region["ops"].items() for _ in range(count))


@pytest.mark.parametrize("fuses", [True, False])
def test_cheap_ops_are_recomputed_only_where_their_owner_fuses(make_mixture, loopback, fuses, monkeypatch):
    if fuses:
        traits = dataclasses.replace(loopback.traits(), fused=frozenset({("pointwise", "pointwise")}))
        monkeypatch.setattr(type(loopback), "traits", lambda self: traits)

    def function(value):
        return (value.sin().cos() * 2).sin()

    mixture = make_mixture(loopback)
    value = torch.randn(64, 64, requires_grad=True)
    torch.compile(function, backend=mixture)(value).sum().backward()
    expected = value.detach().clone().requires_grad_()
    function(expected).sum().backward()
    torch.testing.assert_close(value.grad, expected.grad)
    ops = backward_ops(mixture)
    # The derivatives need cos twice and sin once; whatever is more was computed again.
    assert (ops["aten.cos.default"] > 2) is fuses
    assert (ops["aten.sin.default"] > 1) is fuses


def test_users_checkpointing_is_obeyed(make_mixture, loopback):
    layer = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    mixture = make_mixture(loopback)

    def function(value):
        return torch.utils.checkpoint.checkpoint(layer, value, use_reentrant=False).sum()

    value = torch.randn(4, 8)
    torch.compile(function, backend=mixture)(value).backward()
    mine = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    function(value).backward()
    for gradient, parameter in zip(mine, layer.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
    assert backward_ops(mixture)["aten.gelu.default"] == 1


def test_equal_ops_are_no_hindrance(make_mixture, loopback):
    """Two layers make the same mask: planning computes it once, and the split still knows what to save."""

    def function(value, mask):
        for _ in range(2):
            value = torch.where(mask.sin() > 0.5, value, value.cos()) * value.exp()
        return value

    mixture = make_mixture(loopback)
    value, mask = torch.randn(16, 16, requires_grad=True), torch.randn(16, 16)
    torch.compile(function, backend=mixture)(value, mask).sum().backward()
    expected = value.detach().clone().requires_grad_()
    function(expected, mask).sum().backward()
    torch.testing.assert_close(value.grad, expected.grad)
    assert mixture.report().events == ()
    assert backward_ops(mixture)["aten.exp.default"] == 0
