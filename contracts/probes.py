"""The standard probes: tiny computations that tell a backend's rates.

Place: default of ``Backend.probes``; run by ``mixbackend.calibration`` through the backend's own ``compile``.
Invariants: inputs are seeded; all probes of one backend together take about a second of run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from mixbackend.contracts.cost import DeviceModel

if TYPE_CHECKING:
    from mixbackend.contracts.backend import Probe


def standard_probes(device: DeviceModel) -> tuple[Probe, ...]:
    """One probe per class of work that decides placements on this device."""
    from mixbackend.contracts.backend import Probe

    aten = torch.ops.aten

    def tensors(*shapes: tuple[int, ...]) -> Callable[[], Sequence[Any]]:
        def build() -> Sequence[Any]:
            generator = torch.Generator().manual_seed(0)
            return [torch.randn(shape, generator=generator) for shape in shapes]

        return build

    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = aten.bmm(query, aten.transpose(key, 1, 2)) * 0.125
        return aten.bmm(aten._softmax(scores, -1, False), value)

    def convolution(image: Any, weight: Any) -> Any:
        return aten.convolution(image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def depthwise(image: Any, weight: Any) -> Any:
        return aten.convolution(image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 64)

    rows, columns = 512, 768
    plane = rows * columns
    return (
        Probe("matmul", "float32", aten.mm, tensors((256, 768), (768, 768)), 2.0 * 256 * 768 * 768),
        Probe("convolution", "float32", convolution, tensors((1, 64, 56, 56), (64, 64, 3, 3)), 2.0 * 56**2 * 64**2 * 9),
        Probe("attention", "float32", attention, tensors(*[(12, 128, 64)] * 3), 4.0 * 12 * 128 * 128 * 64),
        Probe(
            "normalization",
            "float32",
            lambda x, w, b: aten.native_layer_norm(x, [columns], w, b, 1e-5)[0],
            tensors((rows, columns), (columns,), (columns,)),
            8.0 * plane,
        ),
        Probe("softmax", "float32", lambda x: aten._softmax(x, -1, False), tensors((rows, columns)), 14.0 * plane),
        Probe("pointwise", "float32", aten.gelu, tensors((rows, columns)), 16.0 * plane),
        Probe("reduction", "float32", lambda x: aten.sum(x, [0]), tensors((rows, columns)), 1.0 * plane),
        Probe("pooling", "float32", lambda x: aten.avg_pool2d(x, [2, 2]), tensors((1, 64, 56, 56)), 64.0 * 56**2),
        Probe(
            "copy",
            "float32",
            lambda x: aten.clone(aten.permute(x, [1, 0]), memory_format=torch.contiguous_format),
            tensors((rows, columns)),
            0.0,
        ),
        Probe(
            "gather",
            "float32",
            lambda w: aten.index_select(w, 0, torch.arange(0, 512, 2)),
            tensors((512, 768)),
            math.prod((256, 768)),
        ),
        Probe("other", "float32", depthwise, tensors((1, 64, 56, 56), (64, 1, 3, 3)), 2.0 * 56**2 * 64 * 9),
    )
