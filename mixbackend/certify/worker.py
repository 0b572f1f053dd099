"""A process that is asked about claims: ``python -m mixbackend.certify.worker``.

Place: started by ``crew``. Input: a ``WorkerRequest`` as the first line on standard input, then requests as ``desk``
takes them. Output: a line that says that it is ready; then for each request lines that name what is looked at, and the
answer.
"""

from __future__ import annotations

import json
import logging
import sys

import torch

from mixbackend.certify import torch_samples
from mixbackend.certify.desk import Desk
from mixbackend.certify.source import Source
from mixbackend.certify.tested import one_line
from mixbackend.host.processes import begin_answering


def main() -> None:
    """Answer until the input ends."""
    line, send = begin_answering()
    given = json.loads(line)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    try:
        backend = Source(**given["source"]).load()
    except Exception as error:  # whatever a plug-in does when it is loaded
        send({"status": "failed", "detail": one_line(error)})
        return
    if given["torchs"]:
        torch_samples.load()
    send({"status": "ready", "fingerprint": backend.fingerprint()})
    desk = Desk(backend)
    for request in sys.stdin:
        send(desk.answer(json.loads(request), lambda name: send({"at": name})))


if __name__ == "__main__":
    main()
