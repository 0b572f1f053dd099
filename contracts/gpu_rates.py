"""What to expect of kernels on a GPU before they were measured, as documented numbers.

Place: read by the priors of all backends that work on GPUs, and by the cost model for rows that no backend states.
Two kinds of figures, since processor and GPU work beside one another (``HostRates``): shares of the GPU's peaks and its
pause between kernels, which hold however kernels are launched; and seconds of the processor per launch, which count
where they are launched one by one.
Sources: libraries' kernels are the same for all callers, so all callers assume the same shares. Those of products and
convolutions are what models of the table in ``benchmarks/results/gpu.md`` leave on an H200, in float16 and
replayed: ResNet-50, 0.26 TFLOP in 1.33 ms, a quarter of 790 TFLOP/s; ViT-B/16, 1.1 TFLOP in 3.3 ms, of which a quarter
is loops. With one image a convolution takes about eight microseconds, with what follows it. What loops compute hides
behind their traffic: an H200 reads and writes a float16 element in a picosecond, and does fifty FLOP in that time.
Units: seconds, FLOP/s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mixbackend.contracts.cost import BackendRates, DeviceModel, HostRates, OpRate
from mixbackend.contracts.rate_rows import wider_rows

KERNEL_S = 1.5e-6
"""From the end of one queued kernel to the beginning of the next, about; also of replayed ones."""

LIBRARY_SHARES: Mapping[str, float] = {
    "matmul": 0.6,
    "matmul/batched": 0.35,
    "matmul/unaligned": 0.15,
    "matmul/deep": 0.5,
    "convolution": 0.12,
    "convolution/channels_last": 0.36,
    "convolution/grouped": 0.01,
    "convolution/grouped/channels_last": 0.02,
    "attention": 0.4,
}
"""Of the peak of products of the same type, by row: cuBLAS, cuDNN and the attention kernels that torch has. Row-major
images of 16-bit types are turned around before a convolution and after it."""

LEAST_S: Mapping[str, float] = {
    "matmul": 2e-6,
    "matmul/deep": 3e-6,
    "convolution": 6e-6,
    "convolution/channels_last": 4e-6,
    "attention": 3e-6,
}
"""By row: what the smallest ops take beyond the pause before them (``OpRate.least_s``)."""

LOOP_SHARES: Mapping[str, float] = {
    "pointwise": 2.0,
    "normalization": 2.0,
    "softmax": 2.0,
    "reduction": 0.5,
    "gather": 0.1,
    "scatter": 0.01,
    "pooling": 0.3,
    "copy": 0.03,
    "sort": 0.005,
    "factory": 0.5,
    "random": 0.5,
    "other": 0.05,
}
"""Of the float32 peak, by class: loops compute in float32 whatever they read. Above 1 is what traffic hides."""

ROWS = (*LIBRARY_SHARES, *LOOP_SHARES)
"""All rows with figures of their own; views cost nothing."""
FUSED_S = 0.3e-6
"""In place of ``KERNEL_S`` where loops are fused: about five ops share a kernel."""

LIBRARY_CALLS: Mapping[str, float] = {"matmul": 1.6, "convolution": 2.5, "attention": 2.0}
"""Processor's seconds of calling a library's kernel, over those of an eager addition (``DeviceModel.launch_s``): the
library picks a kernel each time."""


def gpu_rate(device: DeviceModel, row: str, dtype: str) -> OpRate:
    """What kernels for GPUs usually reach on a row."""
    for wider in wider_rows(row):
        if wider in LIBRARY_SHARES:
            return OpRate(KERNEL_S, LIBRARY_SHARES[wider] * device.peak(dtype), least_s=LEAST_S.get(wider, 0.0))
        if wider in LOOP_SHARES:
            return OpRate(KERNEL_S, LOOP_SHARES[wider] * device.peak("float32"))
    return OpRate(KERNEL_S, LOOP_SHARES["other"] * device.peak("float32"))


def gpu_rates(
    backend: str,
    device: DeviceModel,
    rows: Iterable[str],
    host: HostRates,
    pauses: Mapping[str, float] | None = None,
    share: float = 1.0,
) -> BackendRates:
    """A prior on a GPU: what is usual, entered for nothing by the GPU itself.

    Args:
        backend, device: the backend that has them, and where it runs.
        rows: what it has kernels for.
        host: what calls cost the processor.
        pauses: seconds between kernels by row, where it is not ``KERNEL_S`` for each op: ops that share a kernel.
        share: of what is usual.
    """
    own = pauses or {}
    rates = []
    for row in rows:
        for dtype, _ in device.flops_per_s:
            usual = gpu_rate(device, row, dtype)
            pause, flops = own.get(row, usual.overhead_s), share * usual.flops_per_s
            rates.append((row, dtype, replace(usual, overhead_s=pause, flops_per_s=flops)))
    return BackendRates(backend, 0.0, 0.0, rates=tuple(rates), host=host)


def library_calls(device: DeviceModel) -> tuple[tuple[str, float], ...]:
    """Processor's seconds of calling libraries' kernels, by row."""
    return tuple((row, factor * device.launch_s) for row, factor in LIBRARY_CALLS.items())
