"""Blocks of real models, to learn what probes of single ops cannot tell.

Place: input of ``fitting``. Output: functions with their inputs; all but the first input are weights that are known.
Why: inside a region values stay in caches that lone probes miss, libraries fuse, and threads stay awake. What such
blocks take, and not what their ops take one by one, is what placements are made of.
Invariants: as in ``contracts.probes``: seeded, and torch's random stream is left alone. Blocks repeat layers with
weights of their own, as models do, so that weights do not stay in the fastest cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

DTYPE = "float32"
"""Of values and weights, unless a block says otherwise."""
HALF = "float16"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """A piece of a model.

    Attributes:
        name: of the architecture that it is from, and what tells it from the others.
        function: takes the value and then the weights.
        shapes: of the value and the weights.
        channels_last: layout of the value.
        divided: whether it also runs in turns with the reference, to learn what each change of regions costs.
        live: whether the weights change from call to call, as in training: they may not be packed ahead.
        dtype: of all values and weights.
    """

    name: str
    function: Callable[..., Any]
    shapes: tuple[Shape, ...]
    channels_last: bool = False
    divided: bool = False
    dtype: str = DTYPE
    live: bool = False

    def inputs(self, place: torch.device) -> list[torch.Tensor]:
        """The value and the weights, small enough for values to stay in range."""
        generator = torch.Generator(place).manual_seed(0)
        dtype = getattr(torch, self.dtype)
        values = [
            torch.randn(shape, generator=generator, device=place, dtype=torch.float32).mul_(0.05).to(dtype)
            for shape in self.shapes
        ]
        if self.channels_last:
            values[0] = values[0].contiguous(memory_format=torch.channels_last)
        return values


def blocks_for(place: torch.device) -> tuple[Block, ...]:
    """The blocks that tell about a device."""
    return standard_blocks(1) if place.type == "cpu" else accelerator_blocks()


def accelerator_blocks() -> tuple[Block, ...]:
    """Few, since compilers take seconds for each, and those that tell most first: batches as accelerators get them, in
    the type that they are bought for, images channels-last; and what tells whether float32 is as was probed."""

    def transformer(dtype: str) -> Block:
        return Block("transformer/feed-forward-768", _feed_forward, _feed_forward_shapes(2048, 768, 2), dtype=dtype)

    def image(dtype: str, divided: bool = False) -> Block:
        return Block("resnet/14", _bottleneck, _bottleneck_shapes(32, 1024, 256, 14, 2), True, divided, dtype)

    halves = (
        transformer(HALF),
        Block("transformer/attention-768", _attention, _attention_shapes(1024, 768, 2), divided=True, dtype=HALF),
        Block("transformer/gradients-768", _gradients, _gradients_shapes(4096, 768, 2), dtype=HALF),
        Block("swin/14", _windows, _windows_shapes(128, 384, 2), dtype=HALF),
        Block("convnext/28", _separable, _separable_shapes(32, 192, 28, 2), True, dtype=HALF),
        image(HALF, divided=True),
        Block("resnet/56", _bottleneck, _bottleneck_shapes(32, 256, 64, 56, 2), True, dtype=HALF),
        Block("efficientnet/14", _inverted, _inverted_shapes(32, 112, 672, 14, 2), True, dtype=HALF),
    )
    return (*halves, transformer(DTYPE), image(DTYPE))


_RELAID = ("resnet/56", "resnet/7", "efficientnet/14")
"""Blocks that run channels-last as well: early, late, and with a convolution per channel."""


def standard_blocks(scale: int) -> tuple[Block, ...]:
    """Blocks of transformers and of image networks, early and late, as processors get them.

    Args:
        scale: how many samples at once, but for those that are batches.
    """
    transformers = (
        Block("transformer/feed-forward-384", _feed_forward, _feed_forward_shapes(128 * scale, 384, 3)),
        Block("transformer/feed-forward-768", _feed_forward, _feed_forward_shapes(196 * scale, 768, 1)),
        Block("transformer/feed-forward-768/few", _feed_forward, _feed_forward_shapes(16 * scale, 768, 2)),
        Block("transformer/attention-384", _attention, _attention_shapes(128 * scale, 384, 3), divided=True),
        Block("swin/14", _windows, _windows_shapes(4 * scale, 384, 2)),
        Block("transformer/feed-forward-384/batch", _feed_forward, _feed_forward_shapes(1024 * scale, 384, 1)),
        Block("transformer/feed-forward-384/live", _feed_forward, _feed_forward_shapes(128 * scale, 384, 2), live=True),
        Block("transformer/gradients-384", _gradients, _gradients_shapes(256 * scale, 384, 1), live=True),
        Block("resnet/28/batch", _bottleneck, _bottleneck_shapes(8 * scale, 512, 128, 28, 1)),
        Block("resnet/14/live", _bottleneck, _bottleneck_shapes(2 * scale, 1024, 256, 14, 1), live=True),
    )
    images = (
        ("resnet/56", _bottleneck, _bottleneck_shapes(scale, 256, 64, 56, 2), True),
        ("resnet/14", _bottleneck, _bottleneck_shapes(scale, 1024, 256, 14, 2), False),
        ("resnet/7", _bottleneck, _bottleneck_shapes(scale, 2048, 512, 7, 1), False),
        ("efficientnet/56", _inverted, _inverted_shapes(scale, 24, 144, 56, 2), False),
        ("efficientnet/14", _inverted, _inverted_shapes(scale, 112, 672, 14, 3), True),
        ("convnext/28", _separable, _separable_shapes(scale, 192, 28, 2), False),
    )
    plain = [Block(name, function, shapes, False, divided) for name, function, shapes, divided in images]
    named = ((name, function, shapes) for name, function, shapes, _ in images if name in _RELAID)
    relaid = [Block(f"{name}/channels_last", function, shapes, True) for name, function, shapes in named]
    return (*transformers, *plain, *relaid)


# --- transformers ----------------------------------------------------------------------------------------------------


def _linear(value: Any, weight: Any, bias: Any) -> Any:
    return torch.ops.aten.addmm(bias, value, torch.ops.aten.t(weight))


def _feed_forward(value: Any, *weights: Any) -> Any:
    """Linear, gelu, linear, residual."""
    for first, first_bias, second, second_bias in _layers(weights, 4):
        hidden = torch.ops.aten.gelu(_linear(value, first, first_bias))
        value = torch.ops.aten.add(_linear(hidden, second, second_bias), value)
    return value


def _feed_forward_shapes(rows: int, width: int, layers: int) -> tuple[Shape, ...]:
    layer = ((4 * width, width), (4 * width,), (width, 4 * width), (width,))
    return ((rows, width), *layer * layers)


def _gradients(gradient: Any, *weights: Any) -> Any:
    """Backward of feed-forward layers: the gradients of both weights and biases of each, and of its input."""
    aten, made = torch.ops.aten, []
    for first, second in _layers(weights, 2):
        inner = aten.mm(gradient, second)
        hidden = aten.gelu(inner)
        made += [aten.mm(aten.t(gradient), hidden), aten.sum(gradient, [0]), aten.mm(aten.t(inner), gradient)]
        made.append(aten.sum(inner, [0]))
        gradient = aten.add(aten.mm(inner, first), gradient)
    return (gradient, *made)


def _gradients_shapes(rows: int, width: int, layers: int) -> tuple[Shape, ...]:
    return ((rows, width), *((4 * width, width), (width, 4 * width)) * layers)


_HEAD = 64


def _attention(value: Any, *weights: Any) -> Any:
    """Layer norm, projections, attention of 64-wide heads, projection, residual."""
    aten = torch.ops.aten
    rows, width = value.shape
    for scale, shift, inward, inward_bias, outward, outward_bias in _layers(weights, 6):
        normal = aten.native_layer_norm(value, [width], scale, shift, 1e-5)[0]
        parts = aten.split(_linear(normal, inward, inward_bias), width, 1)
        heads = [aten.permute(aten.view(part, [1, rows, width // _HEAD, _HEAD]), [0, 2, 1, 3]) for part in parts]
        mixed = aten.permute(torch.nn.functional.scaled_dot_product_attention(*heads), [0, 2, 1, 3])
        joined = aten.view(aten.clone(mixed, memory_format=torch.contiguous_format), [rows, width])
        value = aten.add(_linear(joined, outward, outward_bias), value)
    return value


def _attention_shapes(rows: int, width: int, layers: int) -> tuple[Shape, ...]:
    layer = ((width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,))
    return ((rows, width), *layer * layers)


_SIDE = 7


def _windows(value: Any, *weights: Any) -> Any:
    """Swin's: windows of an image are copied together, attend with a bias added to their scores, and are put back."""
    aten = torch.ops.aten
    images, size, _, width = value.shape
    across, heads, area = size // _SIDE, width // 32, _SIDE * _SIDE
    for scale, shift, inward, inward_bias, bias, outward, outward_bias in _layers(weights, 7):
        normal = aten.native_layer_norm(aten.roll(value, [-3, -3], [1, 2]), [width], scale, shift, 1e-5)[0]
        cut = aten.permute(aten.view(normal, [images, across, _SIDE, across, _SIDE, width]), [0, 1, 3, 2, 4, 5])
        rows = aten.view(aten.clone(cut, memory_format=torch.contiguous_format), [-1, width])
        joined = aten.view(_linear(rows, inward, inward_bias), [-1, area, 3, heads, 32])
        query, key, other = aten.unbind(aten.permute(joined, [2, 0, 3, 1, 4]), 0)
        scores = aten.add(aten.matmul(aten.mul(query, 32**-0.5), aten.transpose(key, -2, -1)), bias)
        mixed = aten.transpose(aten.matmul(aten._softmax(scores, -1, False), other), 1, 2)
        made = _linear(aten.reshape(mixed, [-1, width]), outward, outward_bias)
        back = aten.permute(aten.view(made, [images, across, across, _SIDE, _SIDE, width]), [0, 1, 3, 2, 4, 5])
        value = aten.add(value, aten.roll(aten.reshape(back, [images, size, size, width]), [3, 3], [1, 2]))
    return value


def _windows_shapes(windows: int, width: int, layers: int) -> tuple[Shape, ...]:
    bias = (1, width // 32, _SIDE * _SIDE, _SIDE * _SIDE)
    layer = ((width,), (width,), (3 * width, width), (3 * width,), bias, (width, width), (width,))
    return ((windows // 4, 2 * _SIDE, 2 * _SIDE, width), *layer * layers)


# --- image networks --------------------------------------------------------------------------------------------------


def _convolve(image: Any, weight: Any, bias: Any) -> Any:
    """A convolution that keeps the image's size; the shape of its weight tells whether it is depthwise."""
    kernel = weight.shape[-1]
    groups = image.shape[1] // weight.shape[1]
    return torch.ops.aten.convolution(image, weight, bias, [1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], groups)


def _bottleneck(image: Any, *weights: Any) -> Any:
    """ResNet's: narrow, convolve, widen, residual, each with its activation."""
    relu = torch.ops.aten.relu
    for narrow, narrow_bias, square, square_bias, widen, widen_bias in _layers(weights, 6):
        inner = relu(_convolve(relu(_convolve(image, narrow, narrow_bias)), square, square_bias))
        image = relu(torch.ops.aten.add(_convolve(inner, widen, widen_bias), image))
    return image


def _bottleneck_shapes(images: int, channels: int, inner: int, size: int, layers: int) -> tuple[Shape, ...]:
    layer = (*_kernel(channels, inner, 1), *_kernel(inner, inner, 3), *_kernel(inner, channels, 1))
    return ((images, channels, size, size), *layer * layers)


def _inverted(image: Any, *weights: Any) -> Any:
    """EfficientNet's: widen, convolve each channel, squeeze and excite, narrow, residual."""
    aten = torch.ops.aten
    for widen, b0, depthwise, b1, squeeze, b2, excite, b3, narrow, b4 in _layers(weights, 10):
        inner = aten.silu(_convolve(aten.silu(_convolve(image, widen, b0)), depthwise, b1))
        gate = aten.silu(_convolve(aten.mean(inner, [2, 3], True), squeeze, b2))
        inner = aten.mul(inner, aten.sigmoid(_convolve(gate, excite, b3)))
        image = aten.add(_convolve(inner, narrow, b4), image)
    return image


def _inverted_shapes(images: int, channels: int, inner: int, size: int, layers: int) -> tuple[Shape, ...]:
    gate = max(channels // 4, 4)
    layer = (
        *_kernel(channels, inner, 1),
        *_kernel(inner, inner, 5, inner),
        *_kernel(inner, gate, 1),
        *_kernel(gate, inner, 1),
        *_kernel(inner, channels, 1),
    )
    return ((images, channels, size, size), *layer * layers)


def _separable(image: Any, *weights: Any) -> Any:
    """ConvNeXt's: convolve each channel, layer norm over channels, feed-forward, scale, residual."""
    aten = torch.ops.aten
    for depthwise, b0, scale, shift, widen, b1, narrow, b2, gamma in _layers(weights, 9):
        inner = aten.permute(_convolve(image, depthwise, b0), [0, 2, 3, 1])
        width, shape = inner.shape[3], inner.shape
        normal = aten.native_layer_norm(inner, [width], scale, shift, 1e-6)[0]
        hidden = aten.gelu(_linear(aten.reshape(normal, [-1, width]), widen, b1))
        made = aten.mul(aten.view(_linear(hidden, narrow, b2), shape), gamma)
        image = aten.add(aten.permute(made, [0, 3, 1, 2]), image)
    return image


def _separable_shapes(images: int, width: int, size: int, layers: int) -> tuple[Shape, ...]:
    feed_forward = ((4 * width, width), (4 * width,), (width, 4 * width), (width,))
    layer = (*_kernel(width, width, 7, width), (width,), (width,), *feed_forward, (width,))
    return ((images, width, size, size), *layer * layers)


def _kernel(channels: int, made: int, size: int, groups: int = 1) -> tuple[Shape, Shape]:
    return (made, channels // groups, size, size), (made,)


def _layers(weights: Sequence[Any], each: int) -> list[Sequence[Any]]:
    return [weights[start : start + each] for start in range(0, len(weights), each)]
