"""The device as the roofline sees it, measured in about a second.

Place: first step of calibration; its result is kept in the database under device, torch version and threads.
Output: ``DeviceModel``: peak products of matrices per dtype, bandwidth large and in cache, cost of one eager call, and
what copies between an accelerator and the processor take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch

from mixbackend.calibrate.timing import Call, time_calls
from mixbackend.contracts import DeviceModel
from mixbackend.contracts.torch_compat import float32_products
from mixbackend.cost.device_priors import NO_TRANSFER, TENSOR_FLOAT, prior_device
from mixbackend.host.devices import device_name

_TRANSFER_BYTES = (1 << 10, 1 << 25)
_DTYPES = ("float32", "float64", "bfloat16", "float16")
_PEAK_SLICE_S = 0.08
_COPY_SLICE_S = 0.05
_LARGER_BELOW_S = 0.001
_COPY_BYTES = tuple(1 << power for power in (18, 20, 21, 22, 23, 24, 26))
_GPU_COPY_BYTES = tuple(1 << power for power in (20, 22, 23, 24, 25, 26, 29))
_IN_CACHE_BYTES = 1 << 20


def measure_device(device_type: str) -> tuple[DeviceModel, bool]:
    """Measure a device; call it outside of any tracing.

    Returns:
        The device, and whether the timings agree: if not, the machine was busy, and it should be measured again later.
    """
    place = torch.device(device_type)
    timer = _DeviceTimer(place)
    amounts = _COPY_BYTES if place.type == "cpu" else _GPU_COPY_BYTES
    in_cache, large, cache_bytes = bandwidths(place, timer, amounts)
    peaks = _peaks(place, timer)
    transfer, transfer_bandwidth = NO_TRANSFER if place.type == "cpu" else _transfer(place, timer)
    device = DeviceModel(
        device=device_name(device_type),
        flops_per_s=tuple(peaks.items()),
        bytes_per_s=large,
        cache_bytes=cache_bytes,
        cache_bytes_per_s=in_cache,
        launch_s=_launch(place, timer),
        threads=torch.get_num_threads(),
        provenance="probed",
        transfer_s=transfer,
        transfer_bytes_per_s=transfer_bandwidth,
    )
    return (device, True) if timer.settled else (at_least(device, prior_device(device_type)), False)


def at_least(device: DeviceModel, prior: DeviceModel) -> DeviceModel:
    """On a busy machine timings are bounds: whatever is slower than assumed was disturbed."""
    assumed = dict(prior.flops_per_s)
    return replace(
        device,
        flops_per_s=tuple((dtype, max(rate, assumed.get(dtype, 0.0))) for dtype, rate in device.flops_per_s),
        bytes_per_s=max(device.bytes_per_s, prior.bytes_per_s),
        cache_bytes=min(device.cache_bytes, 16 * prior.cache_bytes),
        cache_bytes_per_s=max(device.cache_bytes_per_s, prior.cache_bytes_per_s),
        launch_s=min(device.launch_s, prior.launch_s),
    )


class Timer(Protocol):
    """Times calls on one device."""

    def __call__(self, seconds_each: float, *calls: Call, replayed: bool = True) -> list[float]:
        """Seconds of one call, each."""
        ...


class _DeviceTimer:
    """Times on one device and remembers whether all timings agreed."""

    def __init__(self, place: torch.device) -> None:
        self.settled = True
        self._synchronize = synchronizer(place.type)

    def __call__(self, seconds_each: float, *calls: Call, replayed: bool = True) -> list[float]:
        timings = time_calls(calls, seconds_each, self._synchronize, replayed=replayed)
        self.settled = self.settled and all(timing.settled for timing in timings)
        return [timing.seconds for timing in timings]


def synchronizer(device_type: str) -> Callable[[], object] | None:
    """What waits for a device; ``None`` for the CPU."""
    return None if device_type == "cpu" else torch.get_device_module(device_type).synchronize


def _peaks(place: torch.device, timer: Timer) -> dict[str, float]:
    """FLOP/s by dtype; on a GPU that rounds the factors of float32 products if it may, that rate apart."""
    if place.type == "cpu":
        peaks = {dtype: _peak(place, dtype, timer) for dtype in _DTYPES}
        # Half the bits never take longer: what looks like it was a disturbance.
        peaks["float32"] = max(peaks["float32"], peaks["float64"])
        return peaks
    with float32_products("ieee"):
        peaks = {dtype: _peak(place, dtype, timer) for dtype in _DTYPES}
    with float32_products("tf32"):
        peaks[TENSOR_FLOAT] = _peak(place, "float32", timer)
    return peaks


def _peak(place: torch.device, dtype: str, timer: Timer) -> float:
    size = 256 if place.type == "cpu" else 2048
    seconds = _product_seconds(place, dtype, size, timer)
    # A dtype without fast kernels (half precision on older CPUs) is not worth seconds.
    if seconds < _LARGER_BELOW_S:
        size *= 4
        seconds = _product_seconds(place, dtype, size, timer)
    return 2.0 * size**3 / seconds


def _product_seconds(place: torch.device, dtype: str, size: int, timer: Timer) -> float:
    # Random numbers: a GPU multiplies equal ones with less power, and so faster than it will in a model.
    generator = torch.Generator(place).manual_seed(0)
    wide = torch.randn((size, size), dtype=torch.float32, device=place, generator=generator)
    value = wide.to(getattr(torch, dtype))
    out = torch.empty_like(value)
    return timer(_PEAK_SLICE_S, lambda: torch.mm(value, value, out=out))[0]


def bandwidths(place: torch.device, timer: Timer, amounts: Sequence[int]) -> tuple[float, float, float]:
    """(bytes/s in cache, bytes/s of main memory, bytes up to which values count as in cache).

    On a processor copies go into memory that is there, since freed memory stays in the process (``host.memory``):
    fresh pages would cost several times what the copy does. A GPU makes plain copies without a kernel, more slowly than
    kernels move data.

    Args:
        place: where.
        timer: seconds of one call, each.
        amounts: bytes of the copies, the largest last.
    """
    values = [torch.zeros(amount // 4, dtype=torch.float32, device=place) for amount in amounts]
    calls: list[Call] = [
        partial(torch.zeros_like(value).copy_, value) if place.type == "cpu" else value.neg for value in values
    ]
    seconds = timer(_COPY_SLICE_S, *calls)
    rates = {amount: 2.0 * amount / once for amount, once in zip(amounts, seconds, strict=True)}
    large = rates[amounts[-1]]
    # A GPU is not full with little data: its cache shows where copies are fastest.
    in_cache = max(rates[_IN_CACHE_BYTES] if place.type == "cpu" else max(rates.values()), large)
    fast = [amount for amount, rate in rates.items() if rate * rate >= in_cache * large]
    return in_cache, large, float(max(fast))


def _launch(place: torch.device, timer: Timer) -> float:
    value = torch.ones(8, dtype=torch.float32, device=place)
    (seconds,) = timer(_COPY_SLICE_S, lambda: torch.add(value, value), replayed=False)
    return seconds


def _transfer(place: torch.device, timer: Timer) -> tuple[float, float]:
    """Copies to the processor, which wait for what was queued before: seconds of a small one, bytes/s of large ones."""
    amounts = _TRANSFER_BYTES
    calls = [torch.zeros(amount // 4, dtype=torch.float32, device=place).cpu for amount in amounts]
    small, large = timer(_COPY_SLICE_S, *calls, replayed=False)
    rate = (amounts[1] - amounts[0]) / max(large - small, 1e-9)
    return small, rate
