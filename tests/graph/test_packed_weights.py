"""Torch's product with a weight of 8 bits is written out as a product, for rows of any length."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import mixbackend
from mixbackend.graph.packed_weights import applies, write_products

aten = torch.ops.aten


def operands(rows: int, terms: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-128, 128, (columns, terms), generator=generator, dtype=torch.int8)
    scales = torch.rand(columns, generator=generator) * 0.02
    return torch.randn(rows, terms, generator=generator).to(dtype), weight, scales.to(dtype)


def exact(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return x.double() @ (weight.double() * scales.double()[:, None]).t()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_it_is_written_out(dtype: torch.dtype) -> None:
    given = operands(3, 64, 32, dtype)
    module = make_fx(aten._weight_int8pack_mm, tracing_mode="fake")(*given)
    (before,) = module.graph.find_nodes(op="call_function", target=aten._weight_int8pack_mm.default)
    assert applies(module) and write_products(module) == 1 and not applies(module)
    module.graph.lint()
    (output,) = module.graph.find_nodes(op="output")
    (value,) = [node.meta["val"] for node in output.all_input_nodes]
    stated = before.meta["val"]
    assert (value.dtype, value.shape, value.stride()) == (stated.dtype, stated.shape, stated.stride())
    error = (module(*given).double() - exact(*given)).abs().max()
    kernel = (aten._weight_int8pack_mm(*given).double() - exact(*given)).abs().max()
    assert error <= 2 * kernel + 1e-6 * exact(*given).abs().max()


def test_sums_that_leave_the_range_of_float16_do_not_overflow() -> None:
    _, weight, _ = operands(1, 64, 32, torch.float16)
    x, scales = torch.full((1, 64), 30.0).half(), torch.full((32,), 1e-3).half()
    weight.fill_(100)
    module = make_fx(aten._weight_int8pack_mm, tracing_mode="fake")(x, weight, scales)
    write_products(module)
    torch.testing.assert_close(module(x, weight, scales), exact(x, weight, scales).half(), rtol=2e-3, atol=0.0)


class Layer(nn.Module):
    def __init__(self, terms: int, columns: int, dtype: torch.dtype) -> None:
        super().__init__()
        _, weight, scales = operands(1, terms, columns, dtype)
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return aten._weight_int8pack_mm(x, self.weight, self.scales)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "terms"), [(1, 64), (1, 77), (5, 33)])
def test_rows_of_any_length(rows: int, terms: int, dtype: torch.dtype) -> None:
    """The kernel reads beyond rows of 33 and 77 numbers; eager is not asked to call it."""
    layer, backend = Layer(terms, 48, dtype).eval(), mixbackend.auto()
    x = operands(rows, terms, 48, dtype)[0]
    with torch.no_grad():
        made = torch.compile(layer, backend=backend)(x)
    wanted = exact(x, layer.weight, layer.scales)
    torch.testing.assert_close(
        made.double(), wanted, rtol=0.0, atol=float(wanted.abs().max()) * 2 * torch.finfo(dtype).eps
    )
    graphs = backend.report().to_dict()["graphs"]
    ops = {op for graph in graphs for region in graph["regions"] for op in region["ops"]}
    assert "aten._weight_int8pack_mm.default" not in ops
