"""Families of machines: what tables of rates are shipped for.

Place: below ``rate_tables``. Input: a device's name, what the processor says of itself. Output: a family, a maker.
Invariants: nothing is timed; every device has a family. A family holds machines that have the same code as kernels: on
a processor by the widest instructions that libraries use, on a GPU by the product or, failing that, by its generation.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Literal, get_args

import torch

from mixbackend.host.process_facts import process_fact

Family = Literal["avx2", "avx512", "amx", "aarch64", "h100", "h200", "a100", "rtx4090"]
FAMILIES: tuple[Family, ...] = get_args(Family)

GPU_MAKER = "NVIDIA"

_BY_FLAG: tuple[tuple[str, Family], ...] = (("amx_tile", "amx"), ("avx512f", "avx512"))
_BY_PRODUCT: tuple[tuple[str, Family], ...] = (("H200", "h200"), ("H100", "h100"), ("A100", "a100"))
_OTHER_GPUS: Family = "rtx4090"
"""Other GPUs: cards for consumers, with memory that is slow beside their arithmetic."""


def family_of(device_name: str) -> Family:
    """The family of a device of this machine, by its name (``cpu AMD EPYC``, ``cuda:0 NVIDIA H100``)."""
    if device_name.partition(" ")[0] == "cpu":
        return _processor_family()
    named = (family for part, family in _BY_PRODUCT if part in device_name)
    return next(named, None) or _by_generation()


@process_fact
def maker_here() -> str:
    """The maker of this machine's processor, as the processor says itself: libraries choose kernels by that, too."""
    return _fact("vendor_id") or _fact("CPU implementer") or platform.machine()


def _processor_family() -> Family:
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "aarch64"
    flags = set(_fact("flags").split())
    if not flags:
        return "avx512" if "512" in torch.backends.cpu.get_cpu_capability() else "avx2"
    return next((family for flag, family in _BY_FLAG if flag in flags), "avx2")


def _by_generation() -> Family:
    generation = torch.cuda.get_device_capability(0) if torch.cuda.is_available() else (0, 0)
    by_generation: dict[tuple[int, int], Family] = {(8, 0): "a100", (9, 0): "h100"}
    return by_generation.get(generation, _OTHER_GPUS)


@process_fact
def _facts() -> dict[str, str]:
    """The first processor's lines of ``/proc/cpuinfo``; nothing where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _fact(name: str) -> str:
    return _facts().get(name, "")
