"""The process in which one backend is probed: ``python -m mixbackend.calibrate.probe_worker``.

Place: started by ``isolated_probe``; above ``calibration``, which nothing else of this folder is.
Input: one ``ProbeRequest`` as a line of JSON. Output: one answer; the rates go to the database.
Invariants: whatever the backend raises is an answer; a crash or a hang is seen by the asking process.
"""

from __future__ import annotations

import json

import torch

from mixbackend import registry
from mixbackend.calibrate.calibration import calibrated_costs
from mixbackend.calibrate.isolated_probe import ProbeRequest
from mixbackend.host.processes import Answer, begin_answering
from mixbackend.storage import Database


def main() -> None:
    """Answer one request."""
    line, send = begin_answering()
    send(_probe(ProbeRequest(**json.loads(line))))


def _probe(request: ProbeRequest) -> Answer:
    torch.set_num_threads(request.threads)
    try:
        database = Database.open(request.folder)
        backends = registry.resolve((request.backend,), frozenset())
        asked = [item for item in backends if item.name == request.backend or item.traits().reference]
        calibrated_costs(asked, request.device_type, database)
    except Exception as error:
        return {"status": "failed", "detail": f"{type(error).__name__}: {error}"}
    return {"status": "pass"}


if __name__ == "__main__":
    main()
