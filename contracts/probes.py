"""The standard probes: tiny computations that tell a backend's rates.

Place: default of ``Backend.probes``; run by ``mixbackend.calibrate`` through the backend's own ``compile``.
Invariants: inputs are seeded and leave torch's random stream alone; the most telling probes come first, so that a
backend that compiles slowly learns those before its time is up; all of them together run for about a second. Probes
with constants are for backends that bind code to them. Accelerators fill their memory themselves: numbers made by the
processor would take longer than all else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from mixbackend.contracts.cost import DeviceModel
from mixbackend.contracts.probe import Probe
from mixbackend.contracts.torch_compat import has_fast_bfloat16

_ACCELERATOR_TYPES = ("float16", "float32")
"""What accelerators are bought for comes first: compilers that take seconds for each probe may not come to the rest.
Of the two types of 16 bits one is enough, since the same units compute both (``backend_rates``)."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A convolution as image networks have them; the rate of one shape alone would not tell of the others."""

    channels: int
    made: int
    kernel: int
    size: int
    groups: int = 1

    def image(self, count: int) -> tuple[int, ...]:
        return (count, self.channels, self.size, self.size)

    @property
    def weight(self) -> tuple[int, ...]:
        return (self.made, self.channels // self.groups, self.kernel, self.kernel)

    def flops(self, count: int) -> float:
        return 2.0 * count * self.size**2 * self.made * (self.channels // self.groups) * self.kernel**2

    def convolve(self, image: Any, weight: Any) -> Any:
        padding = [self.kernel // 2] * 2
        return torch.ops.aten.convolution(image, weight, None, [1, 1], padding, [1, 1], False, [0, 0], self.groups)

    def gradients(self, gradient: Any, image: Any, weight: Any) -> Any:
        """Those of the image and of the weight."""
        padding, wanted = [self.kernel // 2] * 2, [True, True, False]
        steps = ([1, 1], padding, [1, 1], False, [0, 0], self.groups)
        return torch.ops.aten.convolution_backward(gradient, image, weight, None, *steps, wanted)[:2]


_CHAINS = (
    (_Layer(64, 64, 3, 56), _Layer(64, 64, 3, 56)),
    (_Layer(512, 256, 1, 28), _Layer(256, 512, 1, 28)),
    (_Layer(512, 512, 3, 7), _Layer(512, 512, 3, 7)),
)
"""Two in a row: what a library does to images on the border of a region is not done between convolutions."""
_POINT_CHAINS = (
    (_Layer(256, 64, 1, 56), _Layer(64, 256, 1, 56)),
    (_Layer(1024, 256, 1, 14), _Layer(256, 1024, 1, 14)),
)
_LEAST_CHAINS = ((_Layer(256, 256, 3, 14), _Layer(256, 1024, 1, 14)),)
_DEPTHWISE_CHAINS = (
    (_Layer(64, 64, 3, 56, 64), _Layer(64, 64, 3, 56, 64)),
    (_Layer(240, 240, 3, 28, 240), _Layer(240, 240, 3, 28, 240)),
    (_Layer(672, 672, 5, 14, 672), _Layer(672, 672, 5, 14, 672)),
)


def standard_probes(device: DeviceModel) -> tuple[Probe, ...]:
    """One probe per row of the rate tables that decides placements on this device."""
    place = device.place
    # Accelerators need more work at once before they show their rate.
    scale = 1 if place.type == "cpu" else 32
    if place.type != "cpu":
        half, single = _ACCELERATOR_TYPES
        kinds = (_products, _gradients, _attention, _loops, _unaligned, _least, _grouped, _single_rows)
        halves = [probe for kind in kinds for probe in kind(place, scale, half)]
        others = [probe for kind in (_products, _attention, _loops, _grouped) for probe in kind(place, scale, single)]
        return (*halves, *others)
    probes = [*_products(place, scale, "float32"), *_gradients_of_layers(place), *_attention(place, scale, "float32")]
    probes += [*_grouped(place, scale, "float32"), *_loops(place, scale, "float32")]
    if has_fast_bfloat16():
        probes += [*_products(place, scale, "bfloat16"), *_single_rows(place, scale, "bfloat16")]
    return (*probes, *_single_rows(place, scale, "float32"))


def _tensors(place: torch.device, dtype: str, *shapes: tuple[int, ...]) -> Callable[[], Sequence[Any]]:
    def build() -> Sequence[Any]:
        generator = torch.Generator(place).manual_seed(0)
        return [
            torch.randn(shape, generator=generator, dtype=torch.float32, device=place).to(getattr(torch, dtype))
            for shape in shapes
        ]

    return build


def _channels_last(build: Callable[[], Sequence[Any]], images: int) -> Callable[[], Sequence[Any]]:
    """The same inputs with the first few, the images, laid out channels-last."""

    def build_channels_last() -> Sequence[Any]:
        values = list(build())
        values[:images] = [image.contiguous(memory_format=torch.channels_last) for image in values[:images]]
        return values

    return build_channels_last


def _products(place: torch.device, scale: int, dtype: str) -> list[Probe]:
    """Products of matrices and convolutions, each with a live weight and with a known one."""
    if place.type != "cpu":
        chains, batched = _convolutions(place, scale, dtype, _CHAINS), _batched(place, scale, dtype)
        if dtype == "float32":
            return [_layers_of_models(place, dtype, _LINEAR_LAYERS[2:]), *chains, batched]
        point = _of_one_point(place, scale, dtype, _POINT_CHAINS)
        return [_layers_of_models(place, dtype, _LINEAR_LAYERS), *chains, point, batched]
    rows = 256 * scale
    operands = _tensors(place, dtype, (768,), (rows, 768), (768, 768))
    flops = 2.0 * rows * 768**2

    def linear(bias: Any, value: Any, weight: Any) -> Any:
        return torch.ops.aten.addmm(bias, value, torch.ops.aten.t(weight))

    return [
        Probe("matmul", dtype, linear, operands, flops, (0, 2)),
        Probe("matmul", dtype, linear, operands, flops, constants=(0, 2)),
        *_convolutions(place, scale, dtype, _CHAINS),
        _batched(place, scale, dtype),
    ]


_LINEAR_LAYERS = ((6304, 768, 2304), (6304, 768, 768), (2048, 768, 3072), (2048, 3072, 768))
"""Rows, terms and columns in transformers: tiles of one shape alone may happen to fill all units of an accelerator."""


def _layers_of_models(place: torch.device, dtype: str, layers: Sequence[tuple[int, int, int]]) -> Probe:
    """Linear layers; whether a weight is known makes no difference to an accelerator's kernels."""

    def linear(*values: Any) -> Any:
        rows = zip(values[::3], values[1::3], values[2::3], strict=True)
        return tuple(torch.ops.aten.addmm(bias, value, torch.ops.aten.t(weight)) for bias, value, weight in rows)

    shapes = [shape for rows, terms, columns in layers for shape in ((columns,), (rows, terms), (columns, terms))]
    flops = sum(2.0 * rows * terms * columns for rows, terms, columns in layers)
    weights = tuple(place for place in range(len(shapes)) if place % 3 != 1)
    return Probe("matmul", dtype, linear, _tensors(place, dtype, *shapes), flops, weights)


_ROW_WIDTHS = (2048, 2048, 8192, 2048, 5632, 2048)
"""Of the layers that a single row goes through: their weights together do not stay in a cache."""


def _single_rows(place: torch.device, scale: int, dtype: str) -> list[Probe]:
    """One row through some layers, as a step of generation has it; also with known weights, where these are packed."""

    def layers(value: Any, *weights: Any) -> Any:
        for weight in weights:
            value = torch.ops.aten.mm(value, torch.ops.aten.t(weight))
        return value

    sizes = list(pairwise(_ROW_WIDTHS))
    operands = _tensors(place, dtype, (1, _ROW_WIDTHS[0]), *((columns, terms) for terms, columns in sizes))
    flops, weights = sum(2.0 * terms * columns for terms, columns in sizes), tuple(range(1, len(_ROW_WIDTHS)))
    live = Probe("matmul", dtype, layers, operands, flops, weights)
    return [live, replace(live, constants=weights)] if place.type == "cpu" else [live]


def _gradients(place: torch.device, scale: int, dtype: str) -> list[Probe]:
    """The gradients of two weights of a transformer, of which each is a sum over all rows."""
    rows = 128 * scale

    def gradients(wide: Any, middle: Any, narrow: Any) -> Any:
        return torch.ops.aten.mm(torch.ops.aten.t(wide), narrow), torch.ops.aten.mm(torch.ops.aten.t(middle), narrow)

    operands = _tensors(place, dtype, (rows, 1536), (rows, 768), (rows, 768))
    return [Probe("matmul", dtype, gradients, operands, 2.0 * rows * (1536 + 768) * 768)]


def _gradients_of_layers(place: torch.device) -> list[Probe]:
    """On a processor: the gradient of a weight of a linear layer, and both gradients of convolutions."""
    rows, width = 256, 768
    layers = [first for first, _ in _CHAINS]
    count = len(layers)

    def of_weight(gradient: Any, value: Any) -> Any:
        return torch.ops.aten.mm(torch.ops.aten.t(gradient), value)

    def of_convolutions(*values: Any) -> Any:
        rows = zip(layers, values[:count], values[count : 2 * count], values[2 * count :], strict=True)
        return tuple(made for layer, *tensors in rows for made in layer.gradients(*tensors))

    product = Probe(
        "matmul", "float32", of_weight, _tensors(place, "float32", (rows, width), (rows, width)), 2.0 * rows * width**2
    )
    made = [(1, layer.made, layer.size, layer.size) for layer in layers]
    shapes = [*made, *(layer.image(1) for layer in layers), *(layer.weight for layer in layers)]
    plain = _tensors(place, "float32", *shapes)
    flops, weights = 2.0 * sum(layer.flops(1) for layer in layers), tuple(range(2 * count, 3 * count))
    layouts = (plain, _channels_last(plain, 2 * count))
    return [product, *(Probe("convolution", "float32", of_convolutions, inputs, flops, weights) for inputs in layouts)]


_VOCABULARY = 16385
"""Columns of an odd number, as vocabularies have."""


def _unaligned(place: torch.device, scale: int, dtype: str) -> list[Probe]:
    """The scores of all words of a vocabulary of odd size."""
    rows, terms = 64 * scale, 768

    def scores(value: Any, weight: Any) -> Any:
        return torch.ops.aten.mm(value, torch.ops.aten.t(weight))

    operands = _tensors(place, dtype, (rows, terms), (_VOCABULARY, terms))
    return [Probe("matmul", dtype, scores, operands, 2.0 * rows * terms * _VOCABULARY, (1,))]


def _least(place: torch.device, scale: int, dtype: str) -> list[Probe]:
    """What single samples ask of the units: a sentence of 128 words, the middle of an image network."""

    def linear(value: Any, weight: Any) -> Any:
        return torch.ops.aten.mm(value, torch.ops.aten.t(weight))

    def product(rows: int, terms: int, columns: int) -> Probe:
        operands = _tensors(place, dtype, (rows, terms), (columns, terms))
        return Probe("matmul", dtype, linear, operands, 2.0 * rows * terms * columns, (1,), least=True)

    products = [product(128, 768, 3072), product(128, 3072, 768)]
    plain, last, known, known_last = _convolutions(place, 1, dtype, _LEAST_CHAINS)
    # Turning weights around, which large batches hide, is no part of the shortest time: it has a price of its own.
    last, known_last = (replace(probe, inputs=_channels_last(probe.inputs, 3)) for probe in (last, known_last))
    convolutions = [plain, last, known, known_last, _of_one_point(place, 1, dtype, _POINT_CHAINS[1:])]
    attention = _attention_of(place, dtype, (1, 12, 128, 64))
    return [*products, *(replace(probe, least=True) for probe in (*convolutions, *attention))]


def _batched(place: torch.device, scale: int, dtype: str) -> Probe:
    """Scores of twelve heads of a sentence, and of the windows of an image."""

    def scores(query: Any, key: Any, window: Any, other: Any) -> Any:
        return torch.ops.aten.bmm(query, key), torch.ops.aten.bmm(window, other)

    heads, windows = 12 * scale, 192 * scale
    operands = _tensors(place, dtype, (heads, 128, 64), (heads, 64, 128), (windows, 49, 32), (windows, 32, 49))
    return Probe("matmul", dtype, scores, operands, 2.0 * (heads * 128 * 128 * 64 + windows * 49 * 49 * 32))


def _grouped(place: torch.device, scale: int, dtype: str) -> list[Probe]:
    return _convolutions(place, scale, dtype, _DEPTHWISE_CHAINS)


def _of_one_point(place: torch.device, scale: int, dtype: str, chains: Sequence[tuple[_Layer, _Layer]]) -> Probe:
    """Channels-last, with live weights: kernels of one point have both layouts, so that nothing is to be packed."""
    return _convolutions(place, scale, dtype, chains)[1]


def _convolutions(place: torch.device, scale: int, dtype: str, chains: Sequence[tuple[_Layer, _Layer]]) -> list[Probe]:
    """Early, middle and late convolutions in both layouts, with live weights and with known ones."""
    images = len(chains)

    def convolve(*values: Any) -> Any:
        rows = zip(chains, values[:images], values[images::2], values[images + 1 :: 2], strict=True)
        return tuple(second.convolve(first.convolve(image, one), two) for (first, second), image, one, two in rows)

    layers = [layer for chain in chains for layer in chain]
    shapes = [*(first.image(scale) for first, _ in chains), *(layer.weight for layer in layers)]
    plain = _tensors(place, dtype, *shapes)
    flops = sum(layer.flops(scale) for layer in layers)
    weights = tuple(range(images, len(shapes)))
    layouts = (plain, _channels_last(plain, images))
    live = [Probe("convolution", dtype, convolve, inputs, flops, weights=weights) for inputs in layouts]
    known = [Probe("convolution", dtype, convolve, inputs, flops, constants=weights) for inputs in layouts]
    return [*live, *known]


def _attention(place: torch.device, scale: int, dtype: str) -> list[Probe]:
    """Of the heads of a sentence; on an accelerator of batches of images and of longer sentences."""
    if place.type == "cpu":
        return _attention_of(place, dtype, (1, 12 * scale, 128, 64))
    return _attention_of(place, dtype, (scale, 12, 197, 64), (scale // 4, 12, 512, 64))


def _attention_of(place: torch.device, dtype: str, *shapes: tuple[int, int, int, int]) -> list[Probe]:
    """Of batch, heads, rows and width of a head."""

    def attention(*values: Any) -> Any:
        groups = [values[start : start + 3] for start in range(0, len(values), 3)]
        made = tuple(torch.nn.functional.scaled_dot_product_attention(*group) for group in groups)
        return made if len(made) > 1 else made[0]

    flops = sum(4.0 * batch * heads * rows**2 * width for batch, heads, rows, width in shapes)
    operands = _tensors(place, dtype, *(shape for shape in shapes for _ in range(3)))
    return [Probe("attention", dtype, attention, operands, flops)]


def _loops(place: torch.device, scale: int, dtype: str) -> list[Probe]:
    """Everything that is one pass over its data."""
    aten = torch.ops.aten
    rows, columns = 512 * scale, 768
    plane = float(rows * columns)

    def tensors(*shapes: tuple[int, ...]) -> Callable[[], Sequence[Any]]:
        return _tensors(place, dtype, *shapes)

    def table_and_indices() -> Sequence[Any]:
        return [*tensors((rows, columns))(), torch.arange(rows, device=place).flip(0)]

    def normalize(value: Any, weight: Any, bias: Any) -> Any:
        return aten.native_layer_norm(value, [columns], weight, bias, 1e-5)[0]

    def transposed(value: Any) -> Any:
        return aten.clone(aten.permute(value, [1, 0]), memory_format=torch.contiguous_format)

    plain = tensors((rows, columns))
    return [
        Probe("pointwise", dtype, lambda value: aten.gelu(value), plain, 16.0 * plane),
        Probe("normalization", dtype, normalize, tensors((rows, columns), (columns,), (columns,)), 8.0 * plane, (1, 2)),
        Probe("softmax", dtype, lambda value: aten._softmax(value, -1, False), plain, 14.0 * plane),
        Probe(
            "pooling",
            dtype,
            lambda value: aten.avg_pool2d(value, [2, 2], [2, 2]),
            tensors((scale, 64, 112, 112)),
            64.0 * 112 * 112 * scale,
        ),
        Probe("reduction", dtype, lambda value: aten.sum(value, [0]), plain, plane),
        Probe("copy", dtype, transposed, plain, plane),
        Probe("gather", dtype, lambda table, rows: aten.index_select(table, 0, rows), table_and_indices, plane),
        Probe(
            "scatter",
            dtype,
            lambda table, rows: aten.index_add(table, 0, rows, table),
            table_and_indices,
            plane,
        ),
    ]
