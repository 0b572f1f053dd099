"""The standard probes: tiny computations that tell a backend's rates.

Place: default of ``Backend.probes``; run by ``mixbackend.calibration`` through the backend's own ``compile``.
Invariants: inputs are seeded and leave torch's random stream alone; the most telling probes come first, so that a
backend that compiles slowly learns those before its time is up; all of them together run for about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from mixbackend.contracts.cost import DeviceModel

if TYPE_CHECKING:
    from mixbackend.contracts.backend import Probe

_HALF_TYPES = ("float16", "bfloat16")


def standard_probes(device: DeviceModel) -> tuple[Probe, ...]:
    """One probe per class of work that decides placements on this device."""
    place = torch.device(device.device.split(" ")[0])
    # Accelerators need more work at once before they show their rate.
    scale = 1 if place.type == "cpu" else 8
    probes = [*_products(place, scale, "float32"), *_loops(place, scale)]
    if place.type != "cpu":
        probes += [probe for dtype in _HALF_TYPES for probe in _products(place, scale, dtype)]
    return tuple(probes)


def _tensors(place: torch.device, dtype: str, *shapes: tuple[int, ...]) -> Callable[[], Sequence[Any]]:
    def build() -> Sequence[Any]:
        generator = torch.Generator("cpu").manual_seed(0)
        return [
            torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(place, getattr(torch, dtype))
            for shape in shapes
        ]

    return build


def _products(place: torch.device, scale: int, dtype: str) -> list[Probe]:
    """Products of matrices, convolutions, attention: most of the time of most models."""
    from mixbackend.contracts.backend import Probe

    aten = torch.ops.aten
    rows, images, heads = 256 * scale, scale, 12 * scale

    def tensors(*shapes: tuple[int, ...]) -> Callable[[], Sequence[Any]]:
        return _tensors(place, dtype, *shapes)

    def linear(bias: Any, value: Any, weight: Any) -> Any:
        return aten.addmm(bias, value, aten.t(weight))

    def convolution(groups: int) -> Callable[..., Any]:
        return lambda image, weight: aten.convolution(
            image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups
        )

    def attention(query: Any, key: Any, value: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    points = 2.0 * images * 56 * 56 * 64 * 9
    return [
        Probe("matmul", dtype, linear, tensors((768,), (rows, 768), (768, 768)), 2.0 * rows * 768**2, (0, 2)),
        Probe("convolution", dtype, convolution(1), tensors((images, 64, 56, 56), (64, 64, 3, 3)), points * 64, (1,)),
        Probe("attention", dtype, attention, tensors(*[(1, heads, 128, 64)] * 3), 4.0 * heads * 128 * 128 * 64),
        Probe(
            "grouped_convolution",
            dtype,
            convolution(64),
            tensors((images, 64, 56, 56), (64, 1, 3, 3)),
            points,
            (1,),
        ),
    ]


def _loops(place: torch.device, scale: int) -> list[Probe]:
    """Everything that is one pass over its data."""
    from mixbackend.contracts.backend import Probe

    aten = torch.ops.aten
    rows, columns, dtype = 512 * scale, 768, "float32"
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
