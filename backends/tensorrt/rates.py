"""What to expect of engines before anything was measured, and between which classes of ops they keep values in kernels.

Place: ``Backend.prior`` and ``Traits.fused``; probes replace these figures once per machine.
Figures: shares of the device's peak. Whole models ran on an H200 with TensorRT 8.6 at 0.6 to 1.6 times inductor's best;
the shares follow from those where one class of op decides.
"""

from __future__ import annotations

import itertools

from mixbackend.contracts import BackendRates, DeviceModel, OpClass, OpRate

_ENTRY_S = 14e-6
_CROSSING_S = 0.6e-6
_SHARES: tuple[tuple[str, float, float], ...] = (
    ("matmul", 2e-6, 0.55),
    ("convolution", 2e-6, 0.45),
    ("convolution/grouped", 2e-6, 0.03),
    ("attention", 3e-6, 0.4),
    ("normalization", 2e-6, 0.04),
    ("softmax", 2e-6, 0.05),
    ("reduction", 2e-6, 0.03),
    ("pointwise", 0.2e-6, 0.25),
    ("pooling", 2e-6, 0.02),
    ("gather", 2e-6, 0.01),
    ("scatter", 3e-6, 0.002),
    ("copy", 1.5e-6, 0.02),
    ("view", 0.0, 1.0),
    ("factory", 0.2e-6, 0.02),
)

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
    if not device.device.startswith("cuda"):
        return None
    rates = tuple(
        (row, dtype, OpRate(seconds, share * peak))
        for row, seconds, share in _SHARES
        for dtype, peak in device.flops_per_s
    )
    return BackendRates(backend, _ENTRY_S, _CROSSING_S, memory_scale=1.0, rates=rates)
