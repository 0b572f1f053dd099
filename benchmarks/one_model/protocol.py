"""The words that the suite and its worker processes exchange: one JSON object per line.

Place: between ``processes`` (the asking side) and ``worker`` (the answering side).
Invariants: only plain data crosses; a request says everything that the worker must know.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mixbackend.benchmarks.one_model.accuracy import Phase
from mixbackend.benchmarks.one_model.precision import Precision

Task = Literal["accuracy", "speed"]

MODULE = "mixbackend.benchmarks.one_model.worker"
"""What a worker process runs."""

MODES = ("default", "reduce-overhead", "max-autotune")
"""Of ``torch.compile``, as far as the suite knows them."""

MIXTURE = "mixbackend"
PLAIN = "plain"
"""Backend name of a peer that is not compiled at all."""

LONGEST_SETTLE_S = 600.0

Status = Literal[
    "pass",
    "fail_accuracy",
    "eager_two_runs_differ",
    "eager_failed",
    "load_failed",
    "failed",
    "timeout",
    "out_of_memory",
    "crash",
]
NOT_JUDGED = frozenset({"eager_two_runs_differ", "eager_failed", "load_failed"})
"""Statuses that say nothing about the backend: the model cannot be judged here."""


@dataclass(frozen=True, slots=True)
class Request:
    """One piece of work for a worker.

    Attributes:
        task: ``accuracy`` answers once, and takes a further request then; ``speed`` answers once it is warm, then times
            calls on demand.
        model, phase: which entry, and what of it.
        backend: ``mixbackend``, ``plain``, or any name torch.compile knows.
        configuration: given to ``mixbackend.auto``.
        always_training_mode: train TorchBench models in training mode, where upstream checks them in evaluation mode.
        memory_bytes: limit of private memory; 0 is none.
        device: where the model runs.
        precision: how it is cast.
        mode: of ``torch.compile``.
        settle_s: longest time that ``speed`` calls before it is warm, until no graph tries other plans any more.
    """

    task: Task
    model: str
    phase: Phase
    backend: str = MIXTURE
    configuration: Mapping[str, Any] = field(default_factory=dict)
    always_training_mode: bool = False
    memory_bytes: int = 0
    device: str = "cpu"
    precision: Precision = "float32"
    mode: str = "default"
    settle_s: float = LONGEST_SETTLE_S

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def request_from_line(line: str) -> Request:
    """The inverse of ``Request.to_line``.

    Raises:
        ValueError: the line is not JSON, or not a request.
    """
    return Request(**arguments_in_line(line, Request))


def arguments_in_line(line: str, kind: type) -> dict[str, Any]:
    """Arguments of a request of some kind, a dataclass: those without a default are there.

    Raises:
        ValueError: the line is not JSON, or not such a request.
    """
    data = json.loads(line)
    fields = dataclasses.fields(kind)
    known = {item.name for item in fields}
    needed = {item.name for item in fields if item.default is item.default_factory is dataclasses.MISSING}
    if not isinstance(data, dict) or not needed <= set(data) <= known:
        raise ValueError(f"not a request with keys from {sorted(known)}: {line.strip()[:200]}")
    return data


def plain_configuration(file: Path) -> dict[str, Any]:
    """What a configuration file sets, as plain data that can cross to a worker."""
    from mixbackend.configuration import load_config

    return json.loads(load_config(file).model_dump_json(exclude_unset=True))
