"""Strips of windows: any window on any machine computes the same; what is kept apart, balanced and bounded."""

from __future__ import annotations

import pytest
import sympy
import torch
from drawn_graphs import cpu_traits
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.ir.check import check_program, check_stages
from mixbackend.backends.codegen.ir.kernel import Kernel
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.ir.stages import Map
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.schedule import schedule
from mixbackend.backends.codegen.targets.cpp.arrangement import largest_value
from mixbackend.contracts import Region
from mixbackend.graph.trace import trace_region

functional = torch.nn.functional


def _region(
    sizes: tuple[int, ...], kernel: tuple[int, int], stride: int = 1, padding: int = 1, dilation: int = 1
) -> tuple[Region, list[torch.Tensor]]:
    channels = sizes[1]
    generator = torch.Generator().manual_seed(sum(sizes))
    image = torch.randn(sizes, generator=generator).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(channels, 1, *kernel, generator=generator)

    def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, w, None, stride, padding, dilation, channels)

    return trace_region(convolve, [image, weight]), [image, weight]


def _program(region: Region, **traits: int) -> Program:
    graph = lower_region(region)
    check_stages(graph)
    return schedule(graph, cpu_traits(**traits))


@pytest.mark.nightly
@settings(max_examples=50, deadline=None)
@given(
    height=st.integers(1, 7),
    width=st.integers(1, 26),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 4),
    dilation=st.integers(1, 2),
    vector_bytes=st.sampled_from([16, 32, 64]),
    parallel_width=st.sampled_from([1, 2, 16]),
)
@example(2, 1, (1, 2), 1, 1, 1, 16, 1)
@example(7, 7, (5, 5), 1, 2, 1, 64, 2)
@example(3, 26, (3, 3), 2, 1, 2, 32, 2)
def test_every_window_is_the_sum_of_its_taps(
    height: int,
    width: int,
    kernel: tuple[int, int],
    stride: int,
    padding: int,
    dilation: int,
    vector_bytes: int,
    parallel_width: int,
) -> None:
    reach = [(taps - 1) * dilation + 1 for taps in kernel]
    assume(height + 2 * padding >= reach[0] and width + 2 * padding >= reach[1])
    region, inputs = _region((2, 9, height, width), kernel, stride, padding, dilation)
    program = _program(region, vector_bytes=vector_bytes, parallel_width=parallel_width)
    check_program(program)
    expected = functional.conv2d(*inputs, None, stride, padding, dilation, 9)
    (result,) = interpret_program(program, inputs)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_narrow_vectors_make_narrow_strips() -> None:
    region, _ = _region((1, 64, 8, 16), (3, 3))
    stores = []
    for vector_bytes in (32, 64):
        kernel = _program(region, vector_bytes=vector_bytes, parallel_width=2).calls[-1].kernel
        assert isinstance(kernel, Kernel)
        stores += [len(nest.finish) for nest in kernel.nests]
    assert stores == [4, 8]


def test_a_tensor_that_is_read_often_lies_in_the_order_of_its_loops() -> None:
    region, _ = _region((1, 64, 8, 16), (3, 3))
    graph = lower_region(region)
    weight = graph.stages[0]
    assert isinstance(weight, Map) and weight.apart and str(weight).startswith("map apart convolution[")
    program = _program(region, parallel_width=2)
    assert [call.origins for call in program.calls] == [("convolution",), ("convolution",)]
    assert any("read often" in str(refusal) for refusal in program.refusals)
    made = program.calls[0].kernel
    assert isinstance(made, Kernel)
    (nest,) = made.nests
    (store,) = nest.body
    vector = next(loop.index for loop in nest.loops if loop.mode == "vector")
    assert store.offset.coeff(vector) == 1, "channels are neighbours"  # type: ignore[union-attr]


def test_tiles_of_channels_are_even_shares() -> None:
    """Three tiles of 64 channels would give one of two threads more than twice as much as the other."""
    whole = trace_region(
        lambda x, w: functional.relu(functional.conv2d(x, w, None, 2, 2, 1, 144)).mean((2, 3)),
        [torch.randn(1, 144, 56, 56).contiguous(memory_format=torch.channels_last), torch.randn(144, 1, 5, 5)],
    )
    program = _program(whole, vector_bytes=64, parallel_width=2)
    kernel = program.calls[1].kernel
    assert isinstance(kernel, Kernel) and program.calls[1].origins == ("convolution", "mean")
    (tiles,) = (loop.extent.subs(dict(_parameters(program, 1))) for loop in kernel.outer)
    assert tiles == 9


def _parameters(program: Program, place: int) -> list[tuple[sympy.Symbol, sympy.Expr]]:
    call = program.calls[place]
    return list(zip(call.kernel.parameters, call.parameters, strict=True))


def test_the_largest_value_of_an_extent() -> None:
    row, size = sympy.Symbol("j", integer=True, nonnegative=True), sympy.Symbol("p", integer=True, positive=True)
    assert largest_value(sympy.Integer(7)) == 7
    assert largest_value(sympy.Max(0, sympy.Min(3, size - row) - sympy.Max(0, 1 - row))) == 3
    assert largest_value(sympy.Min(size, 5)) == 5
    assert largest_value(size) is largest_value(size + 1) is largest_value(sympy.Max(size, 3)) is None
