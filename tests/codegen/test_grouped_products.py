"""Products with weights of 8 and 4 bits in groups: packed as codes, held against float64 of what these stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from product_programs import BACKEND, CONSTANT, drawn, hold_compiled, hold_interpreted, parted, traced, values
from region_arguments import arguments
from test_quantised_products import BACKENDS, COSTS
from torch import Tensor

from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.contracts import Region
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.placement import place

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def integers(low: int, high: int, *sizes: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randint(low, high, sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def codes_of(stored: Tensor, form: str) -> Tensor:
    """Codes of a matrix: as it is stored, or two of 4 bits in each number, the first one low or in the left half."""
    if form == "bytes":
        return stored
    halves = [stored & 15, stored >> 4]
    return torch.stack(halves, -1).flatten(1) if form == "neighbours" else torch.cat(halves, 1)


@dataclass(frozen=True)
class Case:
    """A product with a weight in groups.

    Attributes:
        groups: how many.
        form: see ``codes_of``.
        turned: whether the weight is stored with its terms in rows.
    """

    rows: int
    groups: int
    group: int
    columns: int
    dtype: torch.dtype
    form: str
    zero: str
    bias: bool
    turned: bool = False

    @property
    def terms(self) -> int:
        return self.groups * self.group

    def inputs(self) -> list[Tensor]:
        signed = torch.int8 if self.form == "bytes" else torch.uint8
        limits = torch.iinfo(signed)
        width = self.terms if self.form == "bytes" else self.terms // 2
        scales = (values(self.columns, self.groups, seed=7).abs() * 0.01 + 0.001).to(self.dtype)
        zeros = integers(0, 16, self.columns, self.groups, dtype=torch.int8 if self.zero == "stored" else self.dtype)
        stored = integers(limits.min, limits.max + 1, self.columns, width, dtype=signed)
        x, bias = (values(*size).to(self.dtype) for size in ((self.rows, self.terms), (self.columns,)))
        return [x, stored.t().contiguous() if self.turned else stored, scales, zeros, bias]

    def __call__(self, x: Tensor, stored: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor) -> Tensor:
        codes = codes_of(stored.t() if self.turned else stored, self.form)
        weight = codes.reshape(self.columns, self.groups, self.group).to(x.dtype)
        weight = weight if self.zero == "none" else weight - zeros[..., None].to(x.dtype)
        weight = (weight * scales[..., None]).reshape(self.columns, self.terms)
        made = torch.mm(x, weight.t())
        return made + bias if self.bias else made

    def region(self) -> tuple[Region, list[Any]]:
        region = traced(self, self.inputs(), (1, 2, 3, 4))
        return region, arguments(region, self.inputs())


def stored(case: Case) -> list[tuple[torch.dtype, float]]:
    """Types and bits of the packed matrices of products, once the region is bound."""
    region, _ = case.region()
    kernels = [call.kernel for call in parted(region, BACKEND.program(region)).rest.calls]
    products = [kernel for kernel in kernels if isinstance(kernel, TemplateKernel)]
    return [(kernel.buffers[1].dtype, dict(kernel.options)["bits"]) for kernel in products]


CASES = st.builds(
    Case,
    rows=st.sampled_from([1, 2, 3, 4, 5, 9, 16]),
    groups=st.sampled_from([1, 2, 3, 7]),
    group=st.sampled_from([2, 8, 12, 16, 32, 64]),
    columns=st.sampled_from([1, 2, 7, 16, 30, 49, 64, 65, 130]),
    dtype=st.sampled_from(FLOATS),
    form=st.sampled_from(["bytes", "neighbours", "halves"]),
    zero=st.sampled_from(["none", "stored", "float"]),
    bias=st.booleans(),
    turned=st.booleans(),
)


@drawn(8, 40, 1000)
@given(CASES)
def test_products_of_all_sizes(case: Case) -> None:
    hold_interpreted(*case.region())


@pytest.mark.nightly
@drawn(5, 12, 300)
@given(CASES)
def test_compiled_products(case: Case) -> None:
    hold_compiled(*case.region())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize(("group", "columns"), [(32, 130), (8, 49), (12, 64), (33, 7)])
def test_codes_are_packed_as_they_are_stored(rows: int, group: int, columns: int, dtype: torch.dtype) -> None:
    """Nothing that a product reads at a call is wider than what is stored."""
    case = Case(rows, 4, group, columns, dtype, "bytes", "stored", bias=True)
    assert stored(case) == [(torch.int8, 8)]
    hold_compiled(*case.region())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["neighbours", "halves"])
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_four_bits_stay_four(rows: int, form: str) -> None:
    case = Case(rows, 4, 32, 130, torch.float32, form, "stored", bias=True)
    assert stored(case) == [(torch.int32, 4)]
    hold_compiled(*case.region())


def test_groups_that_words_of_codes_do_not_divide_are_read_as_bytes() -> None:
    case = Case(1, 4, 12, 64, torch.float32, "neighbours", "stored", bias=False)
    assert stored(case) == [(torch.int8, 8)]
    hold_compiled(*case.region())


def matches(case: Case, constants: tuple[int, ...] = (1, 2, 3, 4)) -> list[str]:
    """Patterns that the planner takes."""
    _, graph = trace_graph(case, case.inputs(), roles=dict.fromkeys(constants, CONSTANT))
    return [pattern for region in place(graph, BACKENDS, COSTS).regions for pattern, _ in region.matches]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_is_claimed(dtype: torch.dtype) -> None:
    case = Case(1, 8, 32, 512, dtype, "bytes", "stored", bias=False)
    assert matches(case) == ["widened_in_groups_from_zero_product"]
    assert matches(Case(1, 8, 32, 512, dtype, "bytes", "none", bias=False)) == ["widened_in_groups_product"]
    assert matches(case, (1, 3)) == [], "scales that are not known would be packed anew at each call"
