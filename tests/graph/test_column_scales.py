"""Scales of the columns of a quantised weight are applied to the product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import mixbackend
from mixbackend.graph.column_scales import applies, scale_results

aten = torch.ops.aten
functional = torch.nn.functional


def operands(dtype: torch.dtype, stored: torch.dtype = torch.int8) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Left matrix, weight [columns, terms], a scale for each column, a bias."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(0, 128, (24, 40), generator=generator).to(stored)
    scale = torch.rand(24, 1, generator=generator) * 0.02 + 0.001
    left, bias = (torch.randn(size, generator=generator).to(dtype) for size in ((3, 40), (24,)))
    return left, weight, scale, bias


FORMS: dict[str, Callable[..., Any]] = {
    "linear": lambda x, w, s, b: functional.linear(x, (w.float() * s).to(x.dtype)),
    "bias": lambda x, w, s, b: functional.linear(x, (w.float() * s).to(x.dtype), b),
    "transposed first": lambda x, w, s, b: x @ (w.t().to(x.dtype) * s.t().to(x.dtype)),
    "scale in front": lambda x, w, s, b: x @ (s.flatten().to(x.dtype) * w.t().to(x.dtype)),
    "turned twice": lambda x, w, s, b: (
        x @ (w.to(x.dtype) * s.to(x.dtype)).permute(-2, -1).transpose(0, 0).transpose(-1, 0)
    ),
    "one scale": lambda x, w, s, b: x @ (w.to(x.dtype) * s[0].to(x.dtype)).t(),
}
OTHERS: dict[str, Callable[..., Any]] = {
    "scales of terms": lambda x, w, s, b: x[:, :24] @ (w.to(x.dtype) * s.to(x.dtype)),
    "read by others": lambda x, w, s, b: (x @ (wide := w.to(x.dtype) * s.to(x.dtype)).t(), wide.exp()),
    "integers of 16 bits": lambda x, w, s, b: x @ (w.short().to(x.dtype) * s.to(x.dtype)).t(),
    "a factor that is a number": lambda x, w, s, b: x @ (w.to(x.dtype) * 0.5).t(),
    "factors of the bias": lambda x, w, s, b: torch.addmm(b, x, (w.float() * s).to(x.dtype).t(), beta=2.0),
}


def traced(function: Callable[..., Any], given: tuple[Tensor, ...]) -> torch.fx.GraphModule:
    module = make_fx(function, tracing_mode="fake")(*given)
    module.graph.eliminate_dead_code()
    return module


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_results_are_scaled(name: str, dtype: torch.dtype) -> None:
    given = operands(dtype)
    module = traced(FORMS[name], given)
    assert applies(module) and scale_results(module) == 1 and not applies(module)
    module.graph.lint()
    plain, exact = FORMS[name](*given), FORMS[name](*(item.double() for item in given))
    result = module(*given)
    assert (result.dtype, result.shape, result.stride()) == (plain.dtype, plain.shape, plain.stride())
    allowed = 2 * (plain.double() - exact).abs().max() + 2 * torch.finfo(dtype).eps * exact.abs().max()
    assert (result.double() - exact).abs().max() <= allowed
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mm.default)
    right = product.args[1]
    while right.target in (aten.t.default, aten._to_copy.default):
        right = right.args[0]
    assert right.op == "placeholder" and right.meta["val"].dtype == torch.int8


@pytest.mark.parametrize("name", OTHERS)
def test_what_stays(name: str) -> None:
    module = traced(OTHERS[name], operands(torch.float32))
    assert not applies(module) and scale_results(module) == 0


class Layer(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        _, weight, scale, bias = operands(dtype)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, (self.weight.float() * self.scale).to(x.dtype), self.bias)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_layer_of_one_row_is_claimed(dtype: torch.dtype) -> None:
    layer, backend = Layer(dtype).eval(), mixbackend.auto()
    x = operands(dtype)[0][:1]
    with torch.no_grad():
        made, plain = torch.compile(layer, backend=backend)(x), layer(x)
    exact = functional.linear(x.double(), layer.weight.double() * layer.scale.double(), layer.bias.double())
    allowed = 2 * (plain.double() - exact).abs().max() + 2 * torch.finfo(dtype).eps * exact.abs().max()
    assert (made.double() - exact).abs().max() <= allowed
    regions = [region for graph in backend.report().to_dict()["graphs"] for region in graph["regions"]]
    assert {region["backend"] for region in regions if "aten.mm.default" in region["ops"]} == {"codegen"}
