"""What to expect of engines before anything was measured, and between which classes of ops they keep values in kernels.

Place: ``Backend.prior`` and ``Traits.fused``; probes replace these figures once per machine.
Figures: those of libraries' kernels on GPUs (``contracts.gpu_rates``). Whole models in float16 took 0.65 to 2.5 times
as long as inductor's best on an H200 with TensorRT 8.6, so nothing better is assumed before it is measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from mixbackend.contracts import BackendRates, DeviceModel, HostRates, OpClass, OpRate
from mixbackend.contracts.gpu_rates import FUSED_S, ROWS, gpu_rate

_HOST_ENTRY_S = 14e-6
_HOST_CROSSING_S = 0.6e-6
_HOST_OP_S = 0.5e-6
"""Of the processor: an engine queues all of its kernels in one call, about one for three or four ops."""
_INSIDE: Mapping[str, str] = {"convolution": "convolution/channels_last"}
"""Rows that are as quick as others: inside of an engine images lie as its kernels want them."""
_FUSED_CLASSES = ("pointwise", "normalization", "softmax", "reduction", "gather", "copy", "factory")

_POINTWISE: tuple[OpClass, ...] = ("pointwise", "view", "factory")
_HEAVY: tuple[OpClass, ...] = ("convolution", "matmul", "normalization", "softmax", "reduction")
FUSED: frozenset[tuple[OpClass, OpClass]] = (
    frozenset(itertools.product(_POINTWISE, _POINTWISE))
    | frozenset((heavy, light) for heavy in _HEAVY for light in _POINTWISE)
    | frozenset(
        {
            # A batch norm is folded into its convolution; scores of attention stay in the kernel.
            ("convolution", "normalization"),
            ("matmul", "softmax"),
            ("softmax", "matmul"),
            ("pointwise", "softmax"),
            ("pointwise", "normalization"),
            ("view", "matmul"),
            ("view", "attention"),
            ("attention", "view"),
        }
    )
)


def prior_rates(backend: str, device: DeviceModel) -> BackendRates | None:
    """Rates for GPUs; nothing for other devices."""
    if device.place.type != "cuda":
        return None
    rates = []
    for row in ROWS:
        for dtype, _ in device.flops_per_s:
            usual = gpu_rate(device, _INSIDE.get(row, row), dtype)
            pause = FUSED_S if row in _FUSED_CLASSES else usual.overhead_s
            rates.append((row, dtype, OpRate(pause, usual.flops_per_s)))
    host = HostRates(_HOST_ENTRY_S, _HOST_CROSSING_S, _HOST_OP_S)
    return BackendRates(backend, 0.0, 0.0, rates=tuple(rates), host=host)
