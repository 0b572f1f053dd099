"""Structural probes: what a backend costs whatever the work.

Place: below ``backend_rates``. An almost empty region tells the entry; chains of tiny loops, products and convolutions
tell the overhead of one op; many tensors tell the crossing; one pass over a value tells the memory scale.
On a processor convolutions are of two images: those of a single small one have kernels of their own in torch, which no
layer of a model but the last calls. Kinds of them have chains of their own there: grouped ones, channels-last ones,
gradients.
Output: probes by name, and from their seconds ``Fixed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from mixbackend.contracts import BackendRates, DeviceModel, OpClass, Probe
from mixbackend.contracts.gpu_rates import KERNEL_S
from mixbackend.cost.unfinished import Fixed

CHAIN = 12
_KINDS = "chain of "
"""Before the row, in the names of probes of kinds of convolutions."""
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
    kinds = {name.removeprefix(_KINDS): known[name] for name in known if name.startswith(_KINDS)}
    single = known.get("convolution", 0.0) - convolution
    rows = ((kind, max((seconds - single) / CHAIN, loop)) for kind, seconds in kinds.items())
    return Fixed(entry, crossing, loop, product, convolution, tuple(rows) if "convolution" in known else ())


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

    weights = (1,) if binds else ()
    stream = STREAM_SHAPE if place.type == "cpu" else ACCELERATOR_STREAM_SHAPE

    def probe(op_class: OpClass, function: Callable[..., Any], build: Callable[[], Sequence[Any]]) -> Probe:
        return Probe(op_class, "float32", function, build, 0.0)

    return {
        "entry": probe("pointwise", lambda value: aten.sigmoid(value), inputs(1, 8, 8)),
        "loops": probe("pointwise", loops, inputs(1, 8, 8)),
        "product": probe("matmul", lambda value: aten.mm(value, value), inputs(1, 8, 8)),
        "products": probe("matmul", products, inputs(1, 8, 8)),
        "wide": probe("pointwise", lambda *values: tuple(aten.sigmoid(v) for v in values), inputs(WIDE, 8, 8)),
        "stream": probe("pointwise", lambda value: aten.relu(value), inputs(1, *stream)),
        **{name: replace(chain, constants=weights) for name, chain in _convolutions(place).items()},
        **(_gradients() if place.type == "cpu" else {}),
    }


_CHANNELS = 8
_STEPS = ([1, 1], [0, 0], [1, 1], False, [0, 0])
"""Stride, padding, dilation, whether it is transposed, padding of the output."""


def _convolutions(place: torch.device) -> dict[str, Probe]:
    """One convolution and chains of them, by name; the weight comes second."""

    def convolve(steps: int, groups: int) -> Callable[..., Any]:
        def chain(image: Any, weight: Any) -> Any:
            for _ in range(steps):
                image = torch.ops.aten.convolution(image, weight, None, *_STEPS, groups)
            return image

        return chain

    def probe(steps: int, groups: int = 1, channels_last: bool = False) -> Probe:
        build = _images(place, groups, channels_last, images=1)
        return Probe("convolution", "float32", convolve(steps, groups), build, 0.0)

    chains = {"convolution": probe(1), "convolutions": probe(CHAIN)}
    if place.type != "cpu":
        return chains
    return {
        **chains,
        f"{_KINDS}convolution/grouped": probe(CHAIN, _CHANNELS),
        f"{_KINDS}convolution/channels_last": probe(CHAIN, channels_last=True),
        f"{_KINDS}convolution/grouped/channels_last": probe(CHAIN, _CHANNELS, True),
    }


def _gradients() -> dict[str, Probe]:
    """Chains of gradients of convolutions on a processor, by name: each of its image and its weight."""

    def backwards(groups: int) -> Callable[..., Any]:
        def chain(gradient: Any, image: Any, weight: Any) -> Any:
            made = []
            for _ in range(CHAIN):
                gradient, of_weight, _ = torch.ops.aten.convolution_backward(
                    gradient, image, weight, None, *_STEPS, groups, [True, True, False]
                )
                made.append(of_weight)
            return gradient, *made

        return chain

    def probe(groups: int = 1, channels_last: bool = False) -> Probe:
        build = _images(torch.device("cpu"), groups, channels_last, images=2)
        return Probe("convolution", "float32", backwards(groups), build, 0.0)

    return {
        f"{_KINDS}convolution/gradient": probe(),
        f"{_KINDS}convolution/channels_last/gradient": probe(channels_last=True),
        f"{_KINDS}convolution/grouped/gradient": probe(_CHANNELS),
        f"{_KINDS}convolution/grouped/channels_last/gradient": probe(_CHANNELS, True),
    }


def _images(place: torch.device, groups: int, channels_last: bool, images: int) -> Callable[[], Sequence[Any]]:
    """So many values that are images, and a weight."""
    # On an accelerator one image of one point is as good, and no work.
    shape = (2, _CHANNELS, 2, 2) if place.type == "cpu" else (1, _CHANNELS, 1, 1)
    layout = torch.channels_last if channels_last else torch.contiguous_format

    def build() -> Sequence[Any]:
        values = [filled(shape, 0.5).contiguous(memory_format=layout) for _ in range(images)]
        return [*values, filled((_CHANNELS, _CHANNELS // groups, 1, 1), 0.1)]

    def filled(shape: tuple[int, ...], value: float) -> torch.Tensor:
        return torch.full(shape, value, dtype=torch.float32, device=place)

    return build
