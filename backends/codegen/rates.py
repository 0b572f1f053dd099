"""What to expect of generated kernels before they were measured, and what they keep out of memory.

Place: read by ``backend``; replaced by probes once they ran.
Units: seconds, FLOP/s. Arithmetic is vectorised and all of it is fused, so that memory traffic decides.
On GPUs one call launches all kernels of a region: entering it costs the processor about what an eager op and its
allocations do, and each further kernel what its driver takes. Products are sums in loops there, without tensor cores.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from mixbackend.contracts import BackendRates, DeviceModel, HostRates, OpClass, OpRate
from mixbackend.contracts.gpu_rates import FUSED_S, KERNEL_S, LOOP_SHARES, gpu_rates
from mixbackend.contracts.rate_rows import ONE_ROW

_LOOPS: tuple[OpClass, ...] = (
    "pointwise",
    "reduction",
    "normalization",
    "softmax",
    "view",
    "copy",
    "gather",
    "factory",
    "pooling",
)

_EPILOGUES: tuple[OpClass, ...] = ("pointwise", "view")
_SCORES: tuple[OpClass, ...] = ("pointwise", "softmax", "view")
"""What follows a product inside attention that is written out."""

FUSED: frozenset[tuple[OpClass, OpClass]] = frozenset(
    [
        *itertools.product(_LOOPS, _LOOPS),
        *(("convolution", op_class) for op_class in _EPILOGUES),
        *(("matmul", op_class) for op_class in _SCORES),
        *((op_class, "matmul") for op_class in ("softmax", "view", "copy")),
        *((op_class, "attention") for op_class in ("view", "copy")),
    ]
)
"""Pairs of classes between which values stay in registers or in a core's own cache, or that read where values lie: keys
that several heads share are not copied for each."""
ONLY_FUSED_ON_PROCESSOR: frozenset[tuple[OpClass, OpClass]] = frozenset({("matmul", "softmax"), ("softmax", "matmul")})
"""On a GPU a product is a kernel with what follows it point by point: rows of scores are larger than a tile."""

_ENTRY_S = 1.5e-6
_CROSSING_S = 0.1e-6
_LOOP_OVERHEAD_S = 0.1e-6
_SHARE_OF_PEAK: dict[str, float] = {
    "normalization": 0.2,
    "softmax": 0.2,
    "reduction": 0.15,
    "pointwise": 0.3,
    "gather": 0.05,
    "scatter": 0.02,
    "pooling": 0.1,
    "copy": 0.1,
    "view": 1.0,
    "factory": 0.1,
    "sort": 0.01,
    "attention": 0.7,
    "matmul": 0.6,
    "matmul/constant": 1.1,
    "other": 0.05,
    "convolution/constant": 1.0,
    "convolution/channels_last/constant": 1.0,
    "convolution/grouped": 0.1,
    "convolution/grouped/channels_last": 0.3,
    "convolution/grouped/channels_last/constant": 0.4,
}


_GPU_ENTRY_S = 10e-6
_GPU_CROSSING_S = 0.3e-6
_GPU_OP_S = 0.5e-6
"""A launch by the driver takes 2.5 microseconds, and about five ops share a kernel."""
_GPU_SUMS: dict[str, float] = {
    "convolution": 0.005,
    "convolution/grouped": 0.1,
    "convolution/grouped/channels_last": 0.1,
    "matmul": 0.05,
    "matmul/deep": 0.05,
    "matmul/one_row": 1.0,
    "attention/one_row": 1.0,
}
"""Share of the float32 peak. Products reach much more where they fit: until that is measured, libraries have them.
Single rows wait for what they read."""
_GPU_ROW_S: dict[str, float] = {"matmul": 1.2e-6, "attention": 6e-6}
"""In place of a launch each: projections of one vector start at once, attention is four kernels."""


def codegen_rates(name: str, device: DeviceModel) -> BackendRates:
    """Rates to assume on a device, for the backend of this name."""
    if device.place.type != "cpu":
        return _on_gpu(name, device)
    rates = tuple(
        (row, dtype, OpRate(0.0 if row == "view" else _LOOP_OVERHEAD_S, share * _peak(device, row, peak)))
        for row, share in _SHARE_OF_PEAK.items()
        for dtype, peak in device.flops_per_s
    )
    return BackendRates(name, _ENTRY_S, _CROSSING_S, memory_scale=1.0, rates=rates)


def _on_gpu(name: str, device: DeviceModel) -> BackendRates:
    host = HostRates(_GPU_ENTRY_S, _GPU_CROSSING_S, _GPU_OP_S)
    loops = gpu_rates(name, device, LOOP_SHARES, host, dict.fromkeys(LOOP_SHARES, FUSED_S))
    peak = device.peak("float32")
    sums = tuple(
        (row, dtype, OpRate(_GPU_ROW_S[row.partition("/")[0]] if ONE_ROW in row else KERNEL_S, share * peak))
        for row, share in _GPU_SUMS.items()
        for dtype, _ in device.flops_per_s
    )
    return replace(loops, rates=(*loops.rates, *sums))


def _peak(device: DeviceModel, row: str, peak: float) -> float:
    """Sums of products are made in float32, whatever a processor has for products of 16-bit matrices."""
    return min(peak, device.peak("float32")) if row.startswith("convolution") else peak
