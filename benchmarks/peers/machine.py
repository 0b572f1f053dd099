"""The limits of the machine, and how busy others keep it.

Place: limits are measured once per dtype, in a process of their own; load is read around every timed slice.
Units: FLOP/s, bytes/s, cores.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from mixbackend.calibrate.calibration import calibrated_device
from mixbackend.storage import Database

_CHANNELS, _PIXELS, _CALLS = 1024, 32, 40


@dataclass(frozen=True, slots=True)
class Limits:
    """What no program on this machine can exceed, as far as measured: the best that a library's kernel reached."""

    flops_per_s: float
    bytes_per_s: float


def measure_limits(dtype: str) -> Limits:
    """The device model's rates, and a matrix product as a convolution, which goes to another library."""
    device = calibrated_device("cpu", Database.open())
    known = dict(device.flops_per_s).get(dtype, 0.0)
    return Limits(max(known, _convolution_rate(dtype)), device.bytes_per_s)


def _convolution_rate(dtype: str) -> float:
    kind = getattr(torch, dtype)
    image = torch.ones(1, _CHANNELS, _PIXELS, _PIXELS, dtype=kind).to(memory_format=torch.channels_last)
    weight = torch.ones(_CHANNELS, _CHANNELS, 1, 1, dtype=kind).to(memory_format=torch.channels_last)
    seconds = []
    with torch.no_grad():
        for _ in range(_CALLS):
            start = time.perf_counter()
            torch.nn.functional.conv2d(image, weight)
            seconds.append(time.perf_counter() - start)
    return 2.0 * _CHANNELS**2 * _PIXELS**2 / min(seconds)


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of processor time so far: of the whole machine, and of this process and what it started."""

    wall_s: float
    machine_s: float
    own_s: float

    @classmethod
    def now(cls) -> Usage:
        """Read the counters; a system without them counts as idle."""
        own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return cls(time.perf_counter(), _machine_seconds(), sum(use.ru_utime + use.ru_stime for use in own))

    def cores_of_others(self, later: Usage) -> float:
        """Cores that others used on average between two readings."""
        wall = max(later.wall_s - self.wall_s, 1e-6)
        others = (later.machine_s - self.machine_s) - (later.own_s - self.own_s)
        return max(0.0, others / wall)


def _machine_seconds() -> float:
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, *rest = map(int, fields)
    interrupts = sum(rest[:3])
    return (user + nice + system + interrupts) / os.sysconf("SC_CLK_TCK")
