"""The cases of the headline table: a model of the suite in one phase and one precision, and the ways of running it.

Place: below the process of a case, the runner and the tables. Invariants: a case's name says all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args
from zlib import crc32

from mixbackend.benchmarks.models.order import small_first
from mixbackend.benchmarks.models.registry import models
from mixbackend.benchmarks.one_model.accuracy import Phase
from mixbackend.benchmarks.one_model.precision import PRECISIONS, Precision
from mixbackend.benchmarks.one_model.protocol import MIXTURE, PLAIN

Way = Literal["eager", "inductor", "inductor-graphs", "ours", "ours-graphs"]
WAYS: Mapping[Way, tuple[str, str]] = {
    "eager": (PLAIN, "default"),
    "inductor": ("inductor", "default"),
    "inductor-graphs": ("inductor", "reduce-overhead"),
    "ours": (MIXTURE, "default"),
    "ours-graphs": (MIXTURE, "reduce-overhead"),
}
"""Backend and mode of ``torch.compile``: the default mode and the one with CUDA graphs."""

SETS: Mapping[str, tuple[Phase, Precision]] = {
    "training-amp": ("training", "amp"),
    "training-float32": ("training", "float32"),
    "inference-float16": ("inference", "float16"),
    "inference-float32": ("inference", "float32"),
}
"""What the announcement of PyTorch 2 tells of, in the order of what it weighs."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table's data.

    Attributes:
        model: of the suite.
        phase, precision: how it runs; see ``one_model.precision``.
    """

    model: str
    phase: Phase
    precision: Precision

    @property
    def name(self) -> str:
        """As in files and on the command line."""
        return f"{self.model}/{self.phase}/{self.precision}"

    def order(self) -> tuple[Way, ...]:
        """The ways in the order in which they compile: half of the cases have inductor first, for what one of them
        compiled the other may find in its cache."""
        eager, *rest = get_args(Way)
        pairs = [rest[:2], rest[2:]]
        if crc32(self.model.encode()) % 2:
            pairs.reverse()
        return (eager, *pairs[0], *pairs[1])


def case_of(name: str) -> Case:
    """The inverse of ``Case.name``.

    Raises:
        ValueError: it is none.
    """
    for phase, precisions in PRECISIONS.items():
        for precision in precisions:
            suffix = f"/{phase}/{precision}"
            if name.endswith(suffix):
                return Case(name[: -len(suffix)], phase, precision)
    raise ValueError(f"{name!r} is no case: MODEL/PHASE/PRECISION")


def cases(sets: Iterable[str], names: Iterable[str] = ()) -> list[Case]:
    """Set by set, the smallest graphs first; models that do not train take no part in training.

    Args:
        sets: keys of ``SETS``.
        names: of models; all if empty.
    """
    wanted = set(names)
    entries = [entry for entry in small_first(models()) if not wanted or entry.name in wanted]
    chosen = [SETS[name] for name in SETS if name in set(sets)]
    return [
        Case(entry.name, phase, precision)
        for phase, precision in chosen
        for entry in entries
        if entry.train or phase == "inference"
    ]
