"""What is saved for the backward depends on who owns the ops."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn


def recomputed_ops(mixture):
    backward = mixture.report().to_dict()["graphs"][1]
    assert backward["phase"] == "backward"
    return {op for region in backward["regions"] for op in region["ops"]}


@pytest.mark.parametrize("fuses", [True, False])
def test_cheap_ops_are_recomputed_only_where_their_owner_fuses(make_mixture, loopback, fuses, monkeypatch):
    if fuses:
        traits = dataclasses.replace(loopback.traits(), fused=frozenset({("pointwise", "pointwise")}))
        monkeypatch.setattr(type(loopback), "traits", lambda self: traits)
    mixture = make_mixture(loopback)
    value = torch.randn(64, 64, requires_grad=True)
    torch.compile(lambda x: x.sin().exp().cos(), backend=mixture)(value).sum().backward()
    expected = value.detach().clone().requires_grad_()
    expected.sin().exp().cos().sum().backward()
    torch.testing.assert_close(value.grad, expected.grad)
    assert ("aten.exp.default" in recomputed_ops(mixture)) is fuses


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
    assert "aten.gelu.default" in recomputed_ops(mixture)
