"""Probe a backend in a process of its own: what a vendor's plug-in does there cannot end the user's process.

Place: called by ``calibration`` for backends that must not be probed in this process; ``probe_worker`` is the other
process.
Input: a backend's name, a device type, the database. Output: rates in the database, or why there are none.
Invariants: a crash, a hang or running out of memory is an answer, never an exception.
Non-goals: backends that were registered in the asking process; no other can find them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from mixbackend.host.processes import ask

LONGEST_S = 90.0
"""For one backend: starting a process, compiling its probes, timing them."""

_WORKER = "mixbackend.calibrate.probe_worker"


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """One backend to probe.

    Attributes:
        backend: its name.
        device_type: ``cpu`` or ``cuda``.
        folder: of the database.
        threads: of torch's pool.
    """

    backend: str
    device_type: str
    folder: str
    threads: int

    def to_line(self) -> str:
        """The request as one line of JSON."""
        return json.dumps(asdict(self))


def probe_isolated(backend: str, device_type: str, database: Path) -> str:
    """Probe a backend in a process of its own.

    Args:
        backend: its name.
        device_type: where it is probed.
        database: file that its rates go to.

    Returns:
        Why it could not be probed, in words; empty if it was.
    """
    request = ProbeRequest(backend, device_type, str(database.parent), torch.get_num_threads())
    answer = ask(request, _WORKER, LONGEST_S)
    return "" if answer["status"] == "pass" else f"{answer['status']}: {answer.get('detail', '')}".strip()
