"""Depthwise convolutions: every window, layout and type against eager and float64, as stages, as kernels, compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.ir.check import check_program
from mixbackend.backends.codegen.ir.kernel import Kernel
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.contracts import ErrorBudget
from mixbackend.contracts.numerics import find_deviation
from mixbackend.execute.verify import eager_result, reference_result
from mixbackend.graph.trace import trace_region

functional = torch.nn.functional
BACKEND = CodegenBackend()
BUDGET = ErrorBudget()

# size, kernel, stride, padding, dilation
WINDOWS = [
    ((9, 16), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((9, 16), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((8, 13), (5, 5), (1, 1), (2, 2), (1, 1)),
    ((11, 12), (5, 3), (2, 1), (0, 1), (1, 2)),
    ((7, 7), (7, 7), (1, 1), (3, 3), (1, 1)),
    ((9, 9), (3, 3), (1, 1), (2, 4), (2, 2)),
    ((4, 5), (2, 3), (3, 1), (3, 5), (1, 1)),
    ((3, 17), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((6, 40), (2, 18), (1, 1), (0, 9), (1, 1)),
    ((5, 9), (3, 3), (1, 2), (3, 0), (1, 1)),
]


def _values(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator).to(dtype)


def _channels_last(image: Tensor) -> Tensor:
    return image.contiguous(memory_format=torch.channels_last)


def _operands(channels: int, window: Any, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    size, kernel = window[0], window[1]
    image, weight = _values(2, channels, *size, dtype=dtype), _values(channels, 1, *kernel, dtype=dtype)
    return [_channels_last(image), weight, _values(channels, dtype=dtype)]


def _convolution(window: Any) -> Callable[..., Tensor]:
    _, _, stride, padding, dilation = window
    return lambda image, weight, bias=None: functional.conv2d(
        image, weight, bias, stride, padding, dilation, weight.shape[0]
    )


@pytest.fixture(name="check")
def _check(check_lowering: Callable[..., Any]) -> Callable[..., Program]:
    """Stages, interpreted kernels and compiled kernels compute what eager does; returns the program."""

    def check(function: Callable[..., Any], inputs: Sequence[Tensor], dynamic: bool = False) -> Program:
        check_lowering(function, inputs, dynamic=dynamic)
        region = trace_region(function, inputs, dynamic=dynamic)
        program = BACKEND.program(region)
        check_program(program)
        actual = _arguments(region, inputs)
        eager = eager_result(region, actual)
        exact = reference_result(region, actual, eager)
        compiled = BACKEND.compile(region).run(actual)
        for results in (interpret_program(program, actual), compiled):
            for place, (result, *expected) in enumerate(zip(results, eager, exact, strict=True)):
                assert result.stride() == expected[0].stride() or result.numel() == 0
                assert find_deviation(place, result, *expected, BUDGET) is None
        return program

    return check


def _arguments(region: Any, inputs: Sequence[Tensor]) -> list[Any]:
    named = {f"arg{place}_1": value for place, value in enumerate(inputs)}
    return [named.get(item.name, getattr(item.meta, "hint", None)) for item in region.inputs]


def _strips(program: Program) -> list[tuple[str, ...]]:
    """Loops of the nests of the last kernel, by what their extents are."""
    kernel = program.calls[-1].kernel
    assert isinstance(kernel, Kernel)
    return [tuple(str(loop.extent) for loop in nest.loops) for nest in kernel.nests]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_over_channels_last_images(check, window):
    check(_convolution(window), _operands(20, window))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("window", [WINDOWS[1], WINDOWS[2]])
def test_types_are_summed_before_they_are_rounded(check, dtype, window):
    check(_convolution(window), _operands(33, window, dtype))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("window", [WINDOWS[0], WINDOWS[3], WINDOWS[6]])
def test_images_of_other_layouts(check, window):
    image, weight, bias = _operands(6, window)
    convolve = _convolution(window)
    height, width = window[0]
    check(convolve, [image.contiguous(), weight, bias])
    check(convolve, [_values(2, 6, width, height).transpose(2, 3), weight, bias])
    check(convolve, [_values(2, 12, 2 * height, width)[:, ::2, ::2], weight, bias])
    check(convolve, [_channels_last(_values(2, 9, height, width))[:, 3:], weight, bias])
    check(convolve, [_values(1, 1, height, width).expand(3, 6, height, width), weight, bias])
    check(convolve, [image, weight.flip(0).transpose(2, 3).contiguous().transpose(2, 3), bias])


def test_images_without_elements(check):
    weight, bias = _values(8, 1, 3, 3), _values(8)
    for sizes in [(0, 8, 5, 5), (2, 8, 1, 2)]:
        image = _channels_last(torch.zeros(sizes))
        check(lambda x, w, b: functional.conv2d(x, w, b, 1, 1, 1, 8), [image, weight, bias])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("window", [WINDOWS[0], WINDOWS[1], WINDOWS[5]])
@pytest.mark.parametrize("last", [True, False])
def test_symbolic_sizes(check, window, last):
    """The batch and the image are symbols; a weight made inside has known sizes, and so the channels."""

    def convolve(image: Tensor) -> Tensor:
        weight = torch.arange(16 * 9, dtype=torch.float32).sin().reshape(16, 1, 3, 3)
        return functional.relu(_convolution(window)(image, weight))

    image = _operands(16, window)[0]
    program = check(convolve, [image if last else image.contiguous()], dynamic=True)
    assert {str(size) for size in program.inputs[0].type.sizes[1:2]} == {"16"}
    assert any(size.free_symbols for size in program.outputs[0].sizes)


def test_one_and_three_dimensions(check):
    check(lambda x, w, b: functional.conv1d(x, w, b, 2, 3, 1, 12), [_values(2, 12, 30), _values(12, 1, 7), _values(12)])
    turned = _values(2, 30, 12).transpose(1, 2)
    check(lambda x, w: functional.conv1d(x, w, None, 1, 4, 2, 12), [turned, _values(12, 1, 5)])
    check(lambda x, w: functional.conv1d(x, w, None, 1, 15, 1, 12), [turned, _values(12, 1, 31)])
    for image in (_values(2, 6, 4, 5, 6), _values(2, 6, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d)):
        weight = _values(6, 1, 2, 3, 3)
        check(lambda x, w: functional.conv3d(x, w, None, (1, 2, 1), (1, 1, 1), 1, 6), [image, weight])


def test_what_is_not_finite_stays_where_it_is(check):
    image, weight, bias = _operands(16, WINDOWS[0])
    image[0, 3, 0, 0], image[1, :, 4, 9], image[1, 2, 8, 15] = float("nan"), float("inf"), -float("inf")
    program = check(_convolution(WINDOWS[0]), [image, weight, bias])
    assert len(program.calls) == 2


def test_other_convolutions_are_refused(refused):
    image = _values(1, 8, 6, 6)
    for weight, groups in [((8, 2, 3, 3), 4), ((16, 1, 3, 3), 8)]:
        assert refused(lambda x, w, g=groups: functional.conv2d(x, w, None, 1, 1, 1, g), [image, _values(*weight)]) == [
            "unknown-op"
        ]
    transposed = lambda x, w: functional.conv_transpose2d(x, w, None, 1, 1, 0, 8)  # noqa: E731
    assert refused(transposed, [image, _values(8, 1, 3, 3)]) == ["unknown-op"]
    whole = lambda x, w: functional.conv2d(x, w, None, 1, 1, 1, 8)  # noqa: E731
    assert refused(whole, [torch.ones(1, 8, 6, 6).long(), torch.ones(8, 1, 3, 3).long()]) == ["dtype"]


def test_what_follows_is_in_the_same_kernel(check):
    image, weight, bias = _operands(24, WINDOWS[0])
    scale = _values(24, 1, 1)

    def layer(x: Tensor, w: Tensor, b: Tensor, s: Tensor) -> Tensor:
        return functional.hardswish(_convolution(WINDOWS[0])(x, w, b) * s)

    program = check(layer, [image, weight, bias, scale])
    # One call lays the weight out, the other does everything else.
    assert [call.origins for call in program.calls] == [("convolution",), ("convolution", "hardswish")]
    assert program.calls[1].kernel.buffers[-1].access == "write"


def test_windows_run_in_strips_that_share_their_reads(check):
    window = ((9, 16), (3, 3), (1, 1), (1, 1), (1, 1))
    even = check(_convolution(window), _operands(32, window))
    kernel = even.calls[-1].kernel
    assert isinstance(kernel, Kernel)
    (nest,) = kernel.nests
    at_once = 8 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 4
    assert len(nest.finish) >= at_once, "as many windows at once as there are registers for"
    text = str(kernel)
    assert text.count("if ge(") == 1 and text.count("if lt(") == 1, "only the first and the last column are conditional"
    assert "Max(0" in str(nest.reduced[0].extent), "rows in the padding are left out"
    odd = check(_convolution(((9, 13), *window[1:])), _operands(32, ((9, 13), *window[1:])))
    assert len(_strips(odd)) == 2, "what is left over has a nest of its own"


def test_row_major_images_have_no_strips(check):
    image, weight, bias = _operands(32, WINDOWS[0])
    program = check(_convolution(WINDOWS[0]), [image.contiguous(), weight, bias])
    assert len(_strips(program)) == 1 and "index" in str(program.calls[-1].kernel)
