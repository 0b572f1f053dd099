"""Products with quantised weights: packed as they are stored, held against float64 of what these stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from product_programs import BACKEND, CONSTANT, drawn, hold_compiled, hold_interpreted, parted, traced, values
from region_arguments import arguments
from torch import Tensor, nn

import mixbackend
from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import Region
from mixbackend.cost.device_priors import prior_device
from mixbackend.cost.priors import prior_rates
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.placement import place
from mixbackend.partitioner.roofline import RooflineCostModel

functional = torch.nn.functional
BACKENDS = (BACKEND, EagerBackend())
DEVICE = prior_device("cpu")
COSTS = RooflineCostModel(DEVICE, {item.name: prior_rates(item, DEVICE) for item in BACKENDS})
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def quantised(columns: int, terms: int, dtype: torch.dtype = torch.int8, seed: int = 1) -> Tensor:
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(limits.min, limits.max + 1, (columns, terms), generator=generator, dtype=dtype)


def scales(columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (values(columns, seed=7).abs() * 0.01 + 0.001).to(dtype)


def linear(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """As torchao's weight-only linear layer comes."""
    return torch.mm(x, weight.t().to(x.dtype)) * scale.to(x.dtype)


def stored(region: Region) -> list[torch.dtype]:
    """Types of the packed matrices of a region's products, once it is bound."""
    kernels = [call.kernel for call in parted(region, BACKEND.program(region)).rest.calls]
    return [kernel.buffers[1].dtype for kernel in kernels if isinstance(kernel, TemplateKernel)]


@dataclass(frozen=True)
class Case:
    """A product with a quantised weight, and what follows."""

    rows: int
    terms: int
    columns: int
    dtype: torch.dtype
    weight: torch.dtype
    scale: torch.dtype
    bias: bool
    activation: str

    def inputs(self) -> list[Tensor]:
        x = values(self.rows, self.terms).to(self.dtype)
        weight = quantised(self.columns, self.terms, self.weight)
        return [x, weight, scales(self.columns, self.scale), values(self.columns, seed=9).to(self.dtype)]

    def __call__(self, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        made = linear(x, weight, scale)
        made = made + bias if self.bias else made
        return made if self.activation == "none" else getattr(torch, self.activation)(made)

    def region(self) -> tuple[Region, list[Any]]:
        region = traced(self, self.inputs(), (1, 2, 3))
        return region, arguments(region, self.inputs())


SIZES = st.sampled_from([1, 2, 7, 16, 30, 49, 64, 65, 130])
CASES = st.builds(
    Case,
    rows=st.integers(1, 16),
    terms=SIZES | st.sampled_from([400, 1031]),
    columns=SIZES,
    dtype=st.sampled_from(FLOATS),
    weight=st.sampled_from([torch.int8, torch.int8, torch.uint8]),
    scale=st.sampled_from(FLOATS),
    bias=st.booleans(),
    activation=st.sampled_from(["none", "relu", "sigmoid"]),
)


@drawn(6, 40, 1000)
@given(CASES)
def test_products_of_all_sizes(case: Case) -> None:
    hold_interpreted(*case.region())


@pytest.mark.nightly
@drawn(4, 8, 200)
@given(CASES)
def test_compiled_products(case: Case) -> None:
    hold_compiled(*case.region())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("rows", "terms", "columns"), [(1, 1, 1), (1, 7, 1), (1, 400, 130), (3, 65, 49), (16, 30, 20)])
def test_weights_are_packed_as_they_are_stored(rows: int, terms: int, columns: int, dtype: torch.dtype) -> None:
    inputs = [values(rows, terms).to(dtype), quantised(columns, terms), scales(columns)]
    region = traced(linear, inputs, (1, 2))
    assert stored(region) == [torch.int8]
    hold_compiled(region, arguments(region, inputs))


OTHER_FORMS: dict[str, Callable[..., Any]] = {
    "converted first": lambda x, w, s: functional.linear(x, w.to(x.dtype)) * s,
    "bias in the product": lambda x, w, s: torch.addmm(s, x, w.t().to(x.dtype)),
    "read twice": lambda x, w, s: (linear(x, w, s), functional.linear(x + 1, w.to(x.dtype))),
    "a part": lambda x, w, s: torch.mm(x, w[::2].t().to(x.dtype)),
    "behind one another": lambda x, w, s: linear(linear(x, w, s)[:, : x.shape[1]].contiguous(), w, s),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OTHER_FORMS)
def test_other_forms(name: str) -> None:
    inputs = [values(2, 30), quantised(50, 30), scales(50)]
    region = traced(OTHER_FORMS[name], inputs, (1, 2))
    assert set(stored(region)) == {torch.int8}
    hold_compiled(region, arguments(region, inputs))


def test_a_conversion_that_is_needed_otherwise_is_made_too() -> None:
    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        wide = w.to(x.dtype)
        return torch.mm(x, wide.t()), torch.relu(wide)

    inputs = [values(2, 30), quantised(50, 30)]
    region = traced(both, inputs, (1,))
    hold_compiled(region, arguments(region, inputs))


class Layer(nn.Module):
    """A weight-only quantised linear layer, written out."""

    def __init__(self, columns: int, terms: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", quantised(columns, terms))
        self.register_buffer("scale", scales(columns, dtype) / terms**0.5)
        self.register_buffer("bias", values(columns).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        return linear(flat, self.weight, self.scale).reshape(*x.shape[:-1], -1) + self.bias

    def exact(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.double() * self.scale.double()[:, None], self.bias.double())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 256), (1, 1, 256), (4, 256), (2, 5, 256)], ids=str)
def test_a_model_of_two_layers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    model = nn.Sequential(Layer(512, 256, dtype), nn.GELU(), Layer(256, 512, dtype)).eval()
    backend = mixbackend.auto()
    compiled, x = torch.compile(model, backend=backend), values(*shape).to(dtype)
    with torch.no_grad():
        for _ in range(3):
            mine, plain = compiled(x), model(x)
        exact = model[2].exact(functional.gelu(model[0].exact(x.double())))
    error, eager_error = ((made.double() - exact).abs().max() for made in (mine, plain))
    assert error <= 2 * eager_error + 1e-6 * exact.abs().max()
    if shape == (1, 256):
        regions = [region for graph in backend.report().to_dict()["graphs"] for region in graph["regions"]]
        assert {region["backend"] for region in regions if "aten.mm.default" in region["ops"]} == {"codegen"}


def matches(function: Callable[..., Any], inputs: list[Tensor], constants: tuple[int, ...] = (1, 2)) -> list[str]:
    """Patterns that the planner takes."""
    _, graph = trace_graph(function, inputs, roles=dict.fromkeys(constants, CONSTANT))
    return [pattern for region in place(graph, BACKENDS, COSTS).regions for pattern, _ in region.matches]


def test_what_is_claimed() -> None:
    """A conversion that comes before the transposition or after it, with and without a bias, of known weights."""
    inputs = [values(1, 256), quantised(512, 256), scales(512)]
    assert matches(linear, inputs) == ["widened_product"]
    assert matches(OTHER_FORMS["converted first"], inputs) == ["widened_turned_product"]
    assert matches(OTHER_FORMS["bias in the product"], inputs) == ["widened_product_bias"]
    assert matches(linear, inputs, (2,)) == [], "a weight that is not known would be packed anew at each call"
    wide = [inputs[0], inputs[1].short(), inputs[2]]
    assert matches(linear, wide) == [], "integers of 16 bits are not exact in all floats"
    double = [inputs[0].double(), *inputs[1:]]
    assert matches(linear, double) == [], "sums are float32"


def test_a_match_costs_what_reading_the_weight_as_it_is_stored_does() -> None:
    """Twice the columns cost twice as much; as floats of 16 bits the same weight costs twice as much as well."""

    def price(function: Callable[..., Any], inputs: list[Tensor]) -> float:
        _, graph = trace_graph(function, inputs, roles=dict.fromkeys((1, 2), CONSTANT))
        return place(graph, BACKENDS[:1], COSTS).estimated_s

    x = values(1, 2048).bfloat16()
    narrow = price(linear, [x, quantised(8192, 2048), scales(8192)])
    plain = price(lambda x, w, s: torch.mm(x, w.t()) * s, [x, values(8192, 2048).bfloat16(), scales(8192).bfloat16()])
    assert 0.4 * plain < narrow < 0.6 * plain
