"""One case, and what a peer's process is asked: one line of JSON.

Place: between ``turns`` (the asking side) and ``worker`` (the answering side).
Invariants: only plain data crosses; a request says everything that the process must know.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mixbackend.benchmarks.one_model.accuracy import Phase
from mixbackend.benchmarks.one_model.protocol import arguments_in_line

PHASES: tuple[Phase, ...] = ("inference", "training")
DTYPES = ("float32", "bfloat16")
MODULE = "mixbackend.benchmarks.peers.worker"

OWN_BATCH = 0
"""Batch size of models that have one of their own."""

Task = Literal["calibrate", "machine", "reference", "peer"]

Guards = Literal["checked", "skipped"]
"""Whether compiled models check at every call that what Dynamo saw of them still holds."""


@dataclass(frozen=True, slots=True)
class PeerCase:
    """What all peers run: a model, how many samples at once, inference or a training step, and the element type.

    A batch of ``OWN_BATCH`` is the model's own.
    """

    model: str
    batch: int
    phase: Phase
    dtype: str

    def __str__(self) -> str:
        return f"{self.model} {self.phase} {self.dtype}" + (f" batch {self.batch}" if self.batch != OWN_BATCH else "")


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """One piece of work for a process.

    Attributes:
        task: ``calibrate`` probes what is not known of the machine and our backends; ``machine`` measures the limits
            of the machine; ``reference`` writes what is right and counts the work;
            ``peer`` compiles, warms up, says so, and then times slices on demand.
        case: what is run; for ``machine`` only its dtype counts, for ``calibrate`` nothing.
        peer: name of the peer.
        configuration: given to ``mixbackend.auto`` by peers that are mixtures.
        folder: where ``reference`` writes and peers read.
        threads: of every pool; 0 takes what torch finds.
        memory_bytes: limit of private memory; 0 is none.
        warm_up_s: longest time of warming up.
        guards: of a model that ``torch.compile`` made, once it is warm.
    """

    task: Task
    case: PeerCase
    peer: str = ""
    configuration: Mapping[str, Any] | None = None
    folder: str = ""
    threads: int = 0
    memory_bytes: int = 0
    warm_up_s: float = 10.0
    guards: Guards = "checked"

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def request_from_line(line: str) -> PeerRequest:
    """The inverse of ``PeerRequest.to_line``.

    Raises:
        ValueError: the line is not JSON, or not a request.
    """
    data = arguments_in_line(line, PeerRequest)
    return PeerRequest(**{**data, "case": PeerCase(**data["case"])})
