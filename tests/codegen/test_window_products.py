"""Convolutions as packed products, and what ends a product: against the interpreter, eager and float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from product_programs import (
    BACKEND,
    Steps,
    check,
    drawn,
    hold_compiled,
    hold_interpreted,
    names,
    parted,
    refusal,
    traced,
    values,
    weights,
)
from region_arguments import arguments
from torch import Tensor

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.check import check_stages
from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.finished_products import finish_products
from mixbackend.backends.codegen.schedule.packed_products import pack_products
from mixbackend.backends.codegen.schedule.simplify import simplify
from mixbackend.contracts import Region, Supported, Unsupported

functional = torch.nn.functional


def channels_last(image: Tensor) -> Tensor:
    return image.contiguous(memory_format=torch.channels_last)


def rest_of(region: Region, program: Program) -> list[str]:
    """Kernels that run at each call: those of constants alone ran before."""
    return names(parted(region, program).rest)


def finishes(program: Program) -> list[bool]:
    """Of products, whether something is computed of their sums."""
    kernels = [call.kernel for call in program.calls if isinstance(call.kernel, TemplateKernel)]
    return [kernel.finish is not None for kernel in kernels]


FORMS = (
    ((1, 16, 9, 9), (24, 16, 3, 3), (1, 1, 1)),
    ((2, 3, 17, 15), (70, 3, 7, 7), (2, 3, 1)),
    ((2, 8, 6, 6), (100, 8, 1, 1), (1, 0, 1)),
    ((1, 8, 7, 7), (16, 8, 1, 1), (2, 0, 1)),
    ((3, 5, 12, 11), (33, 5, 4, 4), (4, 0, 1)),
    ((1, 4, 20, 20), (8, 4, 3, 3), (2, 2, 2)),
    ((1, 200, 3, 3), (1, 200, 3, 3), (1, 0, 1)),
    ((2, 6, 9, 8), (5, 6, 3, 2), ((2, 1), (1, 0), (1, 3))),
    ((2, 8, 30), (12, 8, 5), (2, 2, 1)),
)
"""Image, weight, and stride, padding and dilation."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "plain"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_convolutions_are_products(form: Any, biased: bool) -> None:
    image, weight, (stride, padding, dilation) = form
    constants = weights(weight, weight[:1]) if biased else weights(weight)
    run = functional.conv2d if len(image) == 4 else functional.conv1d

    def convolution(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return run(x, w, b, stride, padding, dilation)

    for x in [values(*image), *([channels_last(values(*image))] if len(image) == 4 else [])]:
        region, program = check(convolution, [x, *constants], range(1, 1 + len(constants)))
        assert rest_of(region, program).count("product") == 1


def test_an_image_is_padded_where_it_is_computed() -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.conv2d(functional.gelu(x), w, b, 1, 1)

    region, program = check(layer, [channels_last(values(1, 16, 8, 8)), *weights((32, 16, 3, 3), (32,))], (1, 2))
    assert rest_of(region, program) == ["nest", "product"], "gelu writes the padded image"


def test_images_that_lie_otherwise_are_copied_first() -> None:
    constants = weights((32, 16, 1, 1), (32,))
    region, program = check(functional.conv2d, [channels_last(values(2, 16, 5, 5)), *constants], (1, 2))
    assert rest_of(region, program) == ["product"]
    region, program = check(functional.conv2d, [values(2, 16, 5, 5), *constants], (1, 2))
    assert rest_of(region, program) == ["nest", "product", "nest"], "eager's result lies as its image does"
    check(lambda x, w, b: functional.conv2d(x[:, ::2], w, b), [channels_last(values(2, 32, 5, 5)), *constants], (1, 2))
    check(lambda x, w, b: functional.conv2d(x.flip(1), w, b), [values(2, 16, 5, 5), *constants], (1, 2))
    check(lambda x, w, b: functional.conv2d(x.expand(2, 16, 5, 5), w, b), [values(1, 16, 1, 1), *constants], (1, 2))


def bottleneck(x: Tensor, *given: Tensor) -> Tensor:
    w1, b1, w2, b2, w3, b3 = given
    y = functional.relu(functional.conv2d(x, w1, b1))
    y = functional.relu(functional.conv2d(y, w2, b2, 1, 1))
    return functional.relu(x + functional.conv2d(y, w3, b3))


BOTTLENECK = ((16, 64, 1, 1), (16,), (16, 16, 3, 3), (16,), (64, 16, 1, 1), (64,))


def test_what_follows_point_by_point_ends_a_product() -> None:
    image = channels_last(values(2, 64, 7, 7))
    region, program = check(bottleneck, [image, *weights(*BOTTLENECK)], range(1, 7))
    assert rest_of(region, program) == ["product", "nest", "product", "product"], "only padding is left"
    assert finishes(program) == [True, True, True]


def test_what_leaves_in_another_layout_is_turned_by_a_kernel_of_its_own() -> None:
    region, program = check(bottleneck, [values(2, 64, 7, 7), *weights(*BOTTLENECK)], range(1, 7))
    assert rest_of(region, program)[-1] == "nest" and finishes(program)[-1] is False


def test_a_norm_over_pixels_side_by_side_has_no_divisions() -> None:
    def merge(x: Tensor, s: Tensor, b: Tensor, w: Tensor) -> Tensor:
        pixels = torch.tanh(x).reshape(1, 4, 2, 4, 2, 48).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return functional.linear(functional.layer_norm(pixels, [192], s, b), w)

    _, program = check(merge, [values(1, 8, 8, 48), *weights((192,), (192,), (96, 192))], (1, 2, 3))
    assert "product" in names(program) and "FloorDiv" not in str(program) and "Modulo" not in str(program)


def test_stages_mean_the_same_once_products_are_packed_and_end() -> None:
    image = channels_last(values(2, 64, 5, 5))
    graph = lower_region(traced(bottleneck, [image, *weights(*BOTTLENECK)], range(1, 7)))
    packed, _ = simplify(pack_products(graph, 64), {})
    ended = finish_products(packed)
    check_stages(ended)
    assert "finish" in str(ended) and len(ended.stages) < len(packed.stages)
    inputs = [image, *weights(*BOTTLENECK)]
    for changed in (packed, ended):
        torch.testing.assert_close(interpret_stages(changed, inputs), interpret_stages(graph, inputs))


ENDINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "activation": lambda made, other: functional.silu(made),
    "twice": lambda made, other: made * torch.sigmoid(made),
    "residual": lambda made, other: other + made * 0.5,
    "row": lambda made, other: made * other[:1],
    "column": lambda made, other: made * other[:, :1],
    "one": lambda made, other: made - other[0, 0],
    "chosen": lambda made, other: torch.clamp(made, -0.5, 0.5),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ENDINGS)
def test_a_product_ends_with(name: str) -> None:
    ending = ENDINGS[name]
    inputs = [values(9, 30), *weights((70, 30), (70,)), values(9, 70, seed=5)]
    region, program = check(lambda x, w, b, r: ending(functional.linear(x, w, b), r), inputs, (1, 2))
    assert rest_of(region, program) == ["product"] and finishes(program) == [True]


OTHERS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "read by another": lambda made, other: (torch.relu(made), made.sum(1)),
    "leaving": lambda made, other: (torch.relu(made), made),
    "in another type": lambda made, other: made.to(torch.float64) + 1,
    "chosen by its values": lambda made, other: torch.where(made > other, made, 0.0),
    "turned": lambda made, other: torch.relu(made).t().contiguous(),
    "beside itself": lambda made, other: made[:, :35] * made[:, 35:],
    "by its place": lambda made, other: made + torch.arange(70.0),
    "flipped": lambda made, other: made + other.flip(1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not_end_a_product(name: str) -> None:
    inputs = [values(9, 30), *weights((70, 30), (70,)), values(9, 70, seed=5)]
    other = OTHERS[name]
    _, program = check(lambda x, w, b, r: other(functional.linear(x, w, b), r), inputs, (1, 2))
    assert finishes(program) == [False]


def test_two_products_in_one_sum() -> None:
    def both(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ v + x @ w)

    _, program = check(both, [values(9, 30), *weights((30, 40), (30, 40))], (1, 2))
    assert finishes(program) == [False, True], "the last one ends with the sum"


def test_a_product_stays_before_what_writes_into_its_input() -> None:
    def step(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        made = x @ w
        x.copy_(x * 2.0)
        return torch.relu(made + y)

    inputs = [values(9, 30), *weights((30, 40)), values(9, 40)]
    region = traced(step, inputs, (1,))
    ordered = arguments(region, [item.clone() for item in inputs])
    (result,) = BACKEND.compile(region).run(list(ordered))[:1]
    torch.testing.assert_close(result, torch.relu(inputs[0] @ inputs[1] + inputs[2]))


def test_unknown_batches_and_sides() -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.relu(functional.conv2d(x, w.reshape(24, 8, 3, 3), b, 2, 1))

    constants = weights((24 * 8 * 3 * 3,), (24,))
    region = traced(layer, [values(2, 8, 9, 7), *constants], (1, 2), dynamic=True)
    assert [verdict for view in region.views if isinstance(verdict := BACKEND.judge(view), Unsupported)] == []
    compiled = BACKEND.compile(region)
    for sizes in ((2, 8, 9, 7), (1, 8, 4, 4), (5, 8, 1, 3)):
        x = values(*sizes)
        (result,) = compiled.run(arguments(region, [x, *constants]))
        torch.testing.assert_close(result, layer(x, *constants))


def test_what_is_left_to_libraries() -> None:
    image, (weight,) = values(2, 8, 6, 6), weights((8, 8, 3, 3))
    assert refusal(functional.conv2d, [image, weight], ()).startswith("declined"), "its weight changes"
    assert refusal(lambda x, w: functional.conv2d(x, w, groups=2), [image, weight[:, :4]], (1,)).startswith(
        "unknown-op"
    )
    assert refusal(functional.conv_transpose2d, [image, weight], (1,)).startswith("unknown-op")
    assert refusal(functional.conv2d, [image.double(), weight.double()], (1,)).startswith("dtype")
    assert refusal(functional.conv2d, [image.bfloat16(), weight.bfloat16()], (1,)).startswith("dtype")
    volume = [values(1, 4, 5, 5, 5), *weights((4, 4, 3, 3, 3))]
    assert refusal(functional.conv3d, volume, (1,)).startswith("rank")


@dataclass(frozen=True)
class Network(Steps):
    """Steps over images."""

    sizes: tuple[int, int, int, int]
    steps: tuple[tuple[str, int, int], ...]
    scale: float = 0.2

    def run(self, x: Tensor, weight: Callable[..., Tensor]) -> Tensor:
        before = x
        for name, width, window in self.steps:
            channels, padding = x.shape[1], window // 2
            if name == "convolution":
                before, x = x, functional.conv2d(x, weight(width, channels, window, window), weight(width), 1, padding)
            elif name == "strided":
                kernel = weight(width, channels, window, window)
                before, x = x, functional.conv2d(x, kernel, None, 2, padding)
            elif name == "depthwise":
                kernel = weight(channels, 1, window, window)
                before, x = x, functional.conv2d(x, kernel, None, 1, padding, 1, channels)
            elif name == "activation":
                x = functional.hardswish(x) if width % 2 else functional.relu(x)
            elif name == "norm":
                x = x * weight(channels, 1, 1) + weight(channels, 1, 1)
            elif name == "gate":
                x = x * torch.sigmoid(x.mean((2, 3), keepdim=True))
            elif name == "pool":
                x = functional.max_pool2d(x, 3, 1, 1)
            elif before.shape == x.shape:
                x = x + before
        return x


PRODUCTS = ("convolution", "strided")
BETWEEN = ("depthwise", "activation", "norm", "gate", "pool", "residual")


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Convolutions with what networks put between them."""
    sizes = (
        draw(st.integers(1, 2)),
        draw(st.sampled_from([1, 3, 16])),
        draw(st.integers(1, 7)),
        draw(st.integers(1, 7)),
    )
    widths, windows = st.sampled_from([1, 16, 24, 67]), st.sampled_from([1, 3, 5])
    step = st.tuples(st.sampled_from([*PRODUCTS, *BETWEEN]), widths, windows)
    steps = draw(st.lists(step, max_size=5))
    last = (draw(st.sampled_from(PRODUCTS)), draw(widths), draw(windows))
    return Network(sizes, (*steps, last, *draw(st.lists(step, max_size=2))))


def region_of(network: Network) -> tuple[Region, list[Any]]:
    region, ordered = network.region()
    assert all(isinstance(BACKEND.judge(view), Supported) for view in region.views)
    return region, ordered


@drawn(6, 30, 1000)
@given(networks())
def test_networks(network: Network) -> None:
    hold_interpreted(*region_of(network))


@drawn(2, 3, 100)
@given(networks())
def test_compiled_networks(network: Network) -> None:
    hold_compiled(*region_of(network))
