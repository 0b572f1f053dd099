"""Smoke: the one line that users write, on a model of three layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mixbackend

pytestmark = pytest.mark.smoke


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def test_inference_equals_eager() -> None:
    torch.compiler.reset()
    model, inputs = make_model().eval(), torch.randn(3, 8)
    compiled = torch.compile(model, backend=mixbackend.auto())
    with torch.no_grad():
        torch.testing.assert_close(compiled(inputs), model(inputs))


def test_gradients_equal_eager() -> None:
    torch.compiler.reset()
    model, inputs = make_model(), torch.randn(3, 8)
    compiled = torch.compile(model, backend=mixbackend.auto())
    model(inputs).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    compiled(inputs).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_the_report_says_where_every_node_runs() -> None:
    with torch.no_grad():
        report = mixbackend.explain(make_model().eval(), torch.randn(3, 8))
    (graph,) = report.to_dict()["graphs"]
    placed = [node for region in graph["regions"] for node in region["nodes"]]
    assert len(placed) == len(set(placed)) == graph["nodes"] > 0


def test_the_backend_is_known_by_name() -> None:
    torch.compiler.reset()
    model, inputs = make_model().eval(), torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="mixbackend")(inputs), model(inputs))
