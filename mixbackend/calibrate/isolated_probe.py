"""Probing a backend in a process of its own: what a vendor's plug-in does there cannot end the user's process.

Place: asked by ``model`` for backends that shall not be probed here; ``python -m mixbackend.calibrate.isolated_probe`` is the
other process. Input: a backend's name, a device type, the folder of the database. Output: rates in the database; or why
there are none.
Invariants: a crash, a hang or running out of memory is an answer, never an exception.
Non-goals: backends that were registered in the asking process; no other can find them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from mixbackend.host.processes import Answer, ask, begin_answering

LONGEST_S = 90.0
"""For one backend: starting a process, compiling its probes, timing them."""


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


def probe_apart(backend: str, device_type: str, database: Path) -> str:
    """Probe a backend in a process of its own.

    Args:
        backend: its name.
        device_type: where it is probed.
        database: file that its rates go to.

    Returns:
        Why it could not be probed, in words; empty if it was.
    """
    request = ProbeRequest(backend, device_type, str(database.parent), torch.get_num_threads())
    answer = ask(request, "mixbackend.calibrate.isolated_probe", LONGEST_S)
    return "" if answer["status"] == "pass" else f"{answer['status']}: {answer.get('detail', '')}".strip()


def main() -> None:
    """Answer one request."""
    line, send = begin_answering()
    send(_probe(ProbeRequest(**json.loads(line))))


def _probe(request: ProbeRequest) -> Answer:
    from mixbackend import registry
    from mixbackend.cost.model import cost_model
    from mixbackend.storage import Database

    torch.set_num_threads(request.threads)
    try:
        database = Database.open(request.folder)
        backends = registry.resolve((request.backend,), frozenset())
        asked = [item for item in backends if item.name == request.backend or item.traits().reference]
        cost_model(asked, request.device_type, database)
    except Exception as error:
        return {"status": "failed", "detail": f"{type(error).__name__}: {error}"}
    return {"status": "pass"}


if __name__ == "__main__":
    main()
