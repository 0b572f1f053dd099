"""Products with weights of 4 bits, two codes in a byte, held against float64 of what these stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from product_programs import BACKEND, CONSTANT, drawn, parted, traced, values
from region_arguments import arguments
from test_quantised_products import BACKENDS, COSTS
from torch import Tensor, nn

import mixbackend
from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.ir.check import check_program
from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.backends.codegen.lower.int4_products import block_columns
from mixbackend.contracts import Region, Supported
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.placement import place

aten = torch.ops.aten
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Of a result, relative to the largest: sums in float32, and one rounding to the type."""
pytestmark = pytest.mark.skipif(block_columns() == 0, reason="this processor packs codes of 4 bits in another order")


def product(x: Tensor, packed: Tensor, group: int, scales: Tensor) -> Tensor:
    return aten._weight_int4pack_mm_for_cpu(x, packed, group, scales)


@dataclass(frozen=True)
class Case:
    """A product by torch's operator.

    Attributes:
        blocks: of columns, as they are packed.
    """

    rows: int
    groups: int
    group: int
    blocks: int
    dtype: torch.dtype

    @property
    def sizes(self) -> tuple[int, int]:
        return self.blocks * 64, self.groups * self.group

    def codes(self) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return torch.randint(0, 16, self.sizes, generator=generator, dtype=torch.int32)

    def inputs(self) -> list[Tensor]:
        columns, terms = self.sizes
        scales = values(self.groups, columns, 2, seed=7) * 0.01
        packed = aten._convert_weight_to_int4pack_for_cpu(self.codes(), 1)
        return [values(self.rows, terms).to(self.dtype), packed, scales.to(self.dtype)]

    def __call__(self, x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
        return product(x, packed, self.group, scales)

    def exact(self, x: Tensor, scales: Tensor) -> Tensor:
        columns, terms = self.sizes
        scale, zero = (part.double().t()[..., None] for part in scales.unbind(-1))
        codes = self.codes().double().reshape(columns, self.groups, self.group) - 8
        return x.double() @ (codes * scale + zero).reshape(columns, terms).t()

    def hold(self, result: Tensor) -> None:
        x, _, scales = self.inputs()
        exact = self.exact(x, scales)
        assert (result.double() - exact).abs().max() <= ROUNDING[self.dtype] * exact.abs().max()
        assert result.dtype == self.dtype

    def region(self) -> Region:
        return traced(self, self.inputs(), (1, 2))


CASES = st.builds(
    Case,
    rows=st.sampled_from([1, 2, 3, 4, 5, 9, 17]),
    groups=st.sampled_from([1, 2, 3, 7]),
    group=st.sampled_from([32, 64, 128]),
    blocks=st.integers(1, 3),
    dtype=st.sampled_from(FLOATS),
)


def kernels(region: Region) -> list[tuple[torch.dtype, float]]:
    """Types and bits of the packed matrices of products, once a region is bound."""
    calls = parted(region, BACKEND.program(region)).rest.calls
    products = [call.kernel for call in calls if isinstance(call.kernel, TemplateKernel)]
    return [(kernel.buffers[1].dtype, dict(kernel.options)["bits"]) for kernel in products]


@drawn(6, 30, 500)
@given(CASES)
def test_products_of_all_sizes(case: Case) -> None:
    region = case.region()
    program = BACKEND.program(region)
    check_program(program)
    assert kernels(region) == [(torch.int32, 4)]
    (result,) = interpret_program(program, arguments(region, case.inputs()))
    case.hold(result)


@drawn(2, 8, 200)
@given(CASES)
def test_compiled_products(case: Case) -> None:
    region = case.region()
    (result,) = BACKEND.compile(region).run(list(arguments(region, case.inputs())))
    case.hold(result)


def test_columns_that_are_no_whole_blocks_are_left_alone() -> None:
    """Their bytes lie in another order."""
    codes = torch.randint(0, 16, (80, 64), dtype=torch.int32)
    inputs = [values(1, 64), aten._convert_weight_to_int4pack_for_cpu(codes, 1), values(2, 80, 2)]
    region = traced(lambda x, packed, scales: product(x, packed, 32, scales), inputs, (1, 2))
    assert not any(isinstance(BACKEND.judge(view), Supported) for view in region.views)
    _, graph = trace_graph(lambda *given: product(given[0], given[1], 32, given[2]), inputs, roles=CONSTANTS)
    assert [region.matches for region in place(graph, BACKENDS, COSTS).regions] == [()]


CONSTANTS = dict.fromkeys((1, 2), CONSTANT)


def test_what_is_claimed() -> None:
    case = Case(1, 8, 32, 8, torch.bfloat16)

    def matches(roles: dict[int, object]) -> list[str]:
        _, graph = trace_graph(case, case.inputs(), roles=roles)
        return [pattern for region in place(graph, BACKENDS, COSTS).regions for pattern, _ in region.matches]

    assert matches(CONSTANTS) == ["widened_int4_product"]
    assert matches({1: CONSTANT}) == [], "scales that are not known would be packed anew at each call"


# -- what models write out ------------------------------------------------------------------------------------------

UNPACKINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "neighbours": lambda w: torch.stack([w & 15, w >> 4], -1).flatten(1),
    "upper half first": lambda w: torch.stack([w >> 4, w & 15], -1).reshape(w.shape[0], -1),
    "halves": lambda w: torch.cat([w & 15, (w >> 4) & 15], 1),
    "moved": lambda w: torch.stack([(w & 15).to(torch.int8) - 8, (w >> 4).to(torch.int8) - 8], 2).flatten(1),
    "wide": lambda w: torch.cat([w.int() & 15, (w.int() >> 4) & 15], -1),
    "floats": lambda w: torch.stack([(w & 15).bfloat16(), (w >> 4).bfloat16()], -1).flatten(1),
    "two bits": lambda w: torch.stack([(w >> shift) & 3 for shift in (0, 2, 4, 6)], -1).flatten(1),
}


class Layer(nn.Module):
    """A linear layer whose weight is written out of bytes."""

    def __init__(self, form: str, columns: int, terms: int, group: int, zeros: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.form, self.group = form, group
        codes = 4 if form == "two bits" else 2
        bytes_ = torch.randint(0, 256, (columns, terms // codes), generator=generator, dtype=torch.uint8)
        self.register_buffer("stored", bytes_)
        self.register_buffer("scale", torch.rand(columns, terms // group, generator=generator) * 0.01 + 0.001)
        self.register_buffer("zero", torch.rand(columns, terms // group, generator=generator) * 15 if zeros else None)

    def weight(self, dtype: torch.dtype) -> Tensor:
        codes = UNPACKINGS[self.form](self.stored)
        codes = codes.reshape(len(codes), -1, self.group).to(dtype)
        codes = codes if self.zero is None else codes - self.zero[..., None].to(dtype)
        return (codes * self.scale[..., None].to(dtype)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight(x.dtype))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", UNPACKINGS)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_models(form: str, zeros: bool, rows: int) -> None:
    """What the whole mixture makes of them: one region, near float64, that keeps no codes as bytes."""
    model = Layer(form, 200, 192, 32, zeros).eval()
    backend = mixbackend.auto()
    compiled, x = torch.compile(model, backend=backend), values(rows, 192)
    with torch.no_grad():
        for _ in range(3):
            result = compiled(x)
        exact = x.double() @ model.weight(torch.float64).t()
    assert (result.double() - exact).abs().max() <= 2e-6 * exact.abs().max()
    (graph,) = backend.report().to_dict()["graphs"]
    (region,) = graph["regions"]
    assert region["backend"] == "codegen" and "aten.bitwise_right_shift.Tensor" in region["ops"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", UNPACKINGS)
def test_written_codes_are_packed_in_four_bits(form: str) -> None:
    model = Layer(form, 72, 64, 32, zeros=False)
    names, buffers = zip(*model.named_buffers(), strict=True)

    def call(x: Tensor, *given: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, given, strict=True)), (x,))

    assert kernels(traced(call, [values(1, 64), *buffers], range(1, 1 + len(buffers)))) == [(torch.int32, 4)]
