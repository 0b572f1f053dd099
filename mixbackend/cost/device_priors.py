"""What to assume of a device before it was measured, and a device under the settings of this process.

Place: below the cost model and calibration. Input: a device type, or a device model. Output: ``DeviceModel``.
Invariants: nothing is measured; a prior says that it is one (``provenance``).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mixbackend.contracts import DeviceModel
from mixbackend.contracts.torch_compat import rounds_products
from mixbackend.host.devices import device_name

_PRIORS: dict[str, tuple[float, float, float, float, float]] = {
    # float32 FLOP/s (per thread on a CPU), bytes/s, cache bytes (per thread on a CPU), bytes/s in cache, seconds a call
    "cpu": (60e9, 12e9, 1e6, 60e9, 2e-6),
    "cuda": (30e12, 1e12, 3e7, 4e12, 5e-6),
}
_PRIOR_TRANSFER = (2e-5, 1e10)
"""Seconds of a small copy between processor and accelerator, and bytes/s of a large one, from ordinary memory."""
NO_TRANSFER = (0.0, float("inf"))
"""The same of the processor, which copies nothing to itself."""
TENSOR_FLOAT = "tf32"
"""Where ``DeviceModel.flops_per_s`` keeps the rate of float32 products with factors that are rounded to TF32."""


def prior_device(device_type: str) -> DeviceModel:
    """What to assume of a device before it was measured."""
    threads = torch.get_num_threads()
    flops, bandwidth, cache, cache_bandwidth, launch = _PRIORS.get(device_type, _PRIORS["cuda"])
    transfer, transfer_bandwidth = NO_TRANSFER if device_type == "cpu" else _PRIOR_TRANSFER
    share = threads if device_type == "cpu" else 1
    return DeviceModel(
        device=device_name(device_type),
        flops_per_s=tuple((dtype, flops * share * times) for dtype, times in _shares(device_type)),
        bytes_per_s=bandwidth,
        cache_bytes=cache * share,
        cache_bytes_per_s=cache_bandwidth,
        launch_s=launch,
        threads=threads,
        transfer_s=transfer,
        transfer_bytes_per_s=transfer_bandwidth,
    )


def _shares(device_type: str) -> tuple[tuple[str, float], ...]:
    """Peak of each dtype over that of float32."""
    shares = (("float32", 1.0), ("float64", 0.5))
    return shares if device_type == "cpu" else (*shares, (TENSOR_FLOAT, 4.0), ("float16", 8.0), ("bfloat16", 8.0))


def under_settings(device: DeviceModel) -> DeviceModel:
    """A device as the process has it set up now: with TF32 allowed, that is the rate of float32."""
    peaks = dict(device.flops_per_s)
    if TENSOR_FLOAT not in peaks or not rounds_products():
        return device
    return replace(device, flops_per_s=tuple({**peaks, "float32": peaks[TENSOR_FLOAT]}.items()))
