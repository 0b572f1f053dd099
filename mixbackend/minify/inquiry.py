"""Inquiry: pieces are asked about, each of a process that may die of it.

Place: above ``worker``; below the steps of minification. Input: a piece, the name of its backend. Output: a
``Verdict``.
Invariants: one process for each backend, started anew when it has died; none is left when the inquiry is closed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from mixbackend.certify.source import Source
from mixbackend.host.asked_process import AskedProcess
from mixbackend.minify.piece import Piece
from mixbackend.minify.verdict import Verdict, verdict_of
from mixbackend.select.values import write_values

_MODULE = "mixbackend.minify.worker"
_HINT = "name it as module:class of a module that other processes can import, or give an object with JSON attributes"
_OURS_S = 900.0
"""For what is not the backend's: holding a large region against float64 takes long, and must not hide what is wrong."""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What a process is started with.

    Attributes:
        source: of the backend.
        threads: of torch in the asking process.
    """

    source: Source
    threads: int

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


class Inquiry:
    """See the module's docstring.

    Args:
        source_of: says where a backend comes from.
        timeout_s: longest time for compiling, and for a call.
    """

    def __init__(self, source_of: Callable[[str], Source], timeout_s: float) -> None:
        self._source_of, self._timeout_s = source_of, timeout_s
        self._processes: dict[str, AskedProcess] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="mixbackend-minify-")
        self.asked = 0
        """So many questions were asked."""
        self.limits = dict.fromkeys(("eager", "compare", "time"), max(_OURS_S, timeout_s))
        """Longest times of their own, by what a process is at: what hangs for long hangs for a while, too."""

    def verdict(self, piece: Piece, backend: str, *, timed: bool = False, judged: bool = True) -> Verdict:
        """What becomes of a piece; see ``examine``.

        Raises:
            MixbackendError: another process cannot load the backend.
        """
        if piece.region.is_local:
            return Verdict("unknown", "eager", f"it has no text: {piece.region.text}")
        try:
            write_values(Path(self._folder.name), piece.inputs)
        except TypeError as error:
            return Verdict("unknown", "eager", str(error))
        self.asked += 1
        request = {"text": piece.region.text, "folder": self._folder.name, "timed": timed, "judged": judged}
        return verdict_of(self._process(backend).answer(request, self.limits))

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.close()
        self._folder.cleanup()

    def _process(self, backend: str) -> AskedProcess:
        if backend not in self._processes:
            threads = torch.get_num_threads()
            request = WorkerRequest(self._source_of(backend), threads)
            self._processes[backend] = AskedProcess(request, _MODULE, self._timeout_s, _HINT, threads)
        return self._processes[backend]
