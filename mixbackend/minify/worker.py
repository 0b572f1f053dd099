"""A process that is asked about pieces: ``python -m mixbackend.minify.worker``.

Place: started by ``inquiry``. Input: a ``WorkerRequest`` as the first line, then requests: the text of a region, the
folder of its values. Output: a line that it is ready; for each request lines that name what it is at, and the verdict.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import torch

from mixbackend.certify.source import Source
from mixbackend.certify.tested import one_line
from mixbackend.contracts.region_text import read_region_text
from mixbackend.host.processes import begin_answering
from mixbackend.minify.examine import examine
from mixbackend.select.values import read_values


def main() -> None:
    """Answer until the input ends."""
    line, send = begin_answering()
    given = json.loads(line)
    torch.set_num_threads(given["threads"])
    logging.disable(logging.WARNING)
    try:
        backend = Source(**given["source"]).load()
    except Exception as error:  # whatever a plug-in does when it is loaded
        send({"status": "failed", "detail": one_line(error)})
        return
    send({"status": "ready"})
    for text in sys.stdin:
        request = json.loads(text)
        region = read_region_text(request["text"])
        inputs = read_values(Path(request["folder"]))
        verdict = examine(region, inputs, backend, lambda name: send({"at": name}), request["timed"], request["judged"])
        send({"status": "pass", "verdict": verdict.to_dict()})


if __name__ == "__main__":
    main()
