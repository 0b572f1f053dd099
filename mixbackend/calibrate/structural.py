"""Structural probes: what a backend costs whatever the work.

Place: below ``backend_rates``. An almost empty region tells the entry; chains of tiny loops, products and convolutions
tell the overhead of one op; many tensors tell the crossing; one pass over a value tells the memory scale.
Output: probes by name, and from their seconds ``Fixed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mixbackend.contracts import BackendRates, DeviceModel, OpClass, Probe
from mixbackend.contracts.gpu_rates import KERNEL_S
from mixbackend.cost.unfinished import Fixed

CHAIN = 12
WIDE = 8
STREAM_SHAPE = (512, 768)
ACCELERATOR_STREAM_SHAPE = (8192, 768)
"""As large as the values of the class probes, so that their traffic is known well."""


def fixed_seconds(known: Mapping[str, float], assumed: Fixed) -> Fixed:
    """What structural probes tell, by name; the rest as assumed."""

    def overhead(one: str, many: str, default: float) -> float:
        if one not in known or many not in known:
            return default
        return max((known[many] - known[one]) / (CHAIN - 1), 0.0)

    loop = overhead("entry", "loops", assumed.loop_s)
    product = overhead("product", "products", max(loop, assumed.product_s))
    convolution = overhead("convolution", "convolutions", max(product, assumed.convolution_s))
    entry, crossing = assumed.entry_s, assumed.crossing_s
    if "entry" in known and "wide" in known:
        more = known["wide"] - known["entry"] - (WIDE - 1) * loop
        crossing = max(more / (2 * (WIDE - 1)), 0.0)
    if "entry" in known:
        entry = max(known["entry"] - loop - 2 * crossing, 0.0)
    return Fixed(entry, crossing, loop, product, convolution)


def assumed_seconds(prior: BackendRates, device: DeviceModel) -> Fixed:
    """What to assume where a structural probe did not run."""
    if device.place.type == "cpu":
        return Fixed(prior.entry_s, prior.crossing_s, device.launch_s, device.launch_s / 2, 0.0)
    return Fixed(prior.entry_s, prior.crossing_s, KERNEL_S, KERNEL_S, KERNEL_S)


def structural_probes(place: torch.device, binds: bool) -> dict[str, Probe]:
    """By name; backends that bind code to constants bind the weight of a convolution, as in a model."""
    aten = torch.ops.aten

    def inputs(count: int, *shape: int) -> Callable[[], Sequence[Any]]:
        return lambda: [torch.full(shape, 0.5, dtype=torch.float32, device=place) for _ in range(count)]

    def loops(value: Any) -> Any:
        for step in range(CHAIN):
            value = aten.tanh(value) if step % 2 else aten.sigmoid(value)
        return value

    def products(value: Any) -> Any:
        for _ in range(CHAIN):
            value = aten.mm(value, value)
        return value

    def convolutions(image: Any, weight: Any) -> Any:
        for _ in range(CHAIN):
            image = convolve(image, weight)
        return image

    def convolve(image: Any, weight: Any) -> Any:
        return aten.convolution(image, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    weights = (1,) if binds else ()
    stream = STREAM_SHAPE if place.type == "cpu" else ACCELERATOR_STREAM_SHAPE

    def image_and_weight() -> Sequence[Any]:
        return [*inputs(1, 1, 8, 1, 1)(), *inputs(1, 8, 8, 1, 1)()]

    def probe(
        op_class: OpClass,
        function: Callable[..., Any],
        build: Callable[[], Sequence[Any]],
        constants: tuple[int, ...] = (),
    ) -> Probe:
        return Probe(op_class, "float32", function, build, 0.0, constants=constants)

    return {
        "entry": probe("pointwise", lambda value: aten.sigmoid(value), inputs(1, 8, 8)),
        "loops": probe("pointwise", loops, inputs(1, 8, 8)),
        "product": probe("matmul", lambda value: aten.mm(value, value), inputs(1, 8, 8)),
        "products": probe("matmul", products, inputs(1, 8, 8)),
        "convolution": probe("convolution", convolve, image_and_weight, weights),
        "convolutions": probe("convolution", convolutions, image_and_weight, weights),
        "wide": probe("pointwise", lambda *values: tuple(aten.sigmoid(v) for v in values), inputs(WIDE, 8, 8)),
        "stream": probe("pointwise", lambda value: aten.relu(value), inputs(1, *stream)),
    }
