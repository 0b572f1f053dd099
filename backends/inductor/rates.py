"""What to expect of inductor before it was measured, and what it fuses.

Place: read by ``backend``; replaced by probes once they ran.
Units: seconds, FLOP/s. Inductor calls the same matrix and convolution kernels as eager does, one by one, and turns
everything between them into its own loops. On GPUs its wrapper launches these from Python: about ten microseconds of
the processor for each, among about five ops, and more than that to enter a region.
"""

from __future__ import annotations

import itertools

from mixbackend.contracts import BackendRates, DeviceModel, HostRates, OpClass, OpRate
from mixbackend.contracts.gpu_rates import FUSED_S, ROWS, gpu_rates, library_calls

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
_EXTERN: tuple[OpClass, ...] = ("matmul", "convolution", "attention")

FUSED: frozenset[tuple[OpClass, OpClass]] = frozenset(itertools.product(_LOOPS, _LOOPS)) | frozenset(
    # A view of an extern kernel's result or operand is a change of strides, no copy.
    pair
    for name in _EXTERN
    for pair in ((name, "view"), ("view", name))
)

SHARED_ROWS = frozenset({"matmul", "attention", "convolution/channels_last", "convolution/grouped/channels_last"})
"""On GPUs, what it leaves to the kernels that eager calls; row-major images it may turn around as a whole."""

_PADDED = "matmul/unaligned"
"""What eager's kernels are slow at and inductor pads, so that it takes about as long as other products."""

_ENTRY_S = 12e-6
_CROSSING_S = 0.3e-6
_LOOP_OVERHEAD_S = 0.5e-6
_SHARE_OF_PEAK: dict[str, float] = {
    "matmul": 0.45,
    "convolution": 0.45,
    "convolution/grouped": 0.08,
    "attention": 0.35,
    "normalization": 0.15,
    "softmax": 0.15,
    "reduction": 0.15,
    "pointwise": 0.25,
    "gather": 0.05,
    "scatter": 0.02,
    "pooling": 0.1,
    "copy": 0.1,
    "view": 1.0,
    "factory": 0.1,
    "sort": 0.01,
    "other": 0.05,
}


_GPU_ENTRY_S = 15e-6
_GPU_OP_S = 2e-6


def inductor_rates(device: DeviceModel) -> BackendRates:
    """Rates to assume on a device."""
    if device.place.type != "cpu":
        host = HostRates(_GPU_ENTRY_S, _CROSSING_S, _GPU_OP_S, library_calls(device))
        rows = [row for row in ROWS if row != _PADDED]
        return gpu_rates("inductor", device, rows, host, dict.fromkeys(_LOOPS, FUSED_S))
    rates = tuple(
        (row, dtype, OpRate(_overhead(row, device), share * peak))
        for row, share in _SHARE_OF_PEAK.items()
        for dtype, peak in device.flops_per_s
    )
    return BackendRates("inductor", _ENTRY_S, _CROSSING_S, memory_scale=1.0, rates=rates)


def _overhead(row: str, device: DeviceModel) -> float:
    if row == "view":
        return 0.0
    return _LOOP_OVERHEAD_S if row in _LOOPS else device.launch_s
