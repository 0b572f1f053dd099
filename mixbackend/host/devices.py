"""Devices of this machine by name, with the product: what was measured holds there alone.

Place: read by whatever is remembered per device: rates, decisions, artifacts.
Output: ``cpu AMD EPYC 9B14``, ``cpu aarch64 0x41 0xd40`` (Neoverse V1), ``cuda:0 NVIDIA H100``.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

import torch

from mixbackend.host.process_facts import process_fact


def device_name(device_type: str) -> str:
    """Torch's name of the device, and the product: ``cpu AMD EPYC 9B14``."""
    if device_type == "cpu":
        return f"cpu {_processor()}".strip()
    return f"{device_type}:0 {torch.get_device_module(device_type).get_device_name(0)}"


def devices_here() -> tuple[str, ...]:
    """Names of the devices of this machine, the processor first."""
    return (device_name("cpu"), *((device_name("cuda"),) if torch.cuda.is_available() else ()))


@process_fact
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return product_of(lines) or platform.processor() or platform.machine()


def product_of(lines: Iterable[str]) -> str:
    """The product by what Linux says of the first processor: its name, on AArch64 the numbers of maker and part."""
    facts: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        facts.setdefault(name.strip(), value.strip())
    numbers = [facts[name] for name in ("CPU implementer", "CPU part") if name in facts]
    return facts.get("model name") or " ".join([platform.machine(), *numbers] if numbers else ())
