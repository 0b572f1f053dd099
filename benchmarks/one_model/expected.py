"""What a model's results must be: eager's, twice, and those of float64.

Place: between ``steps``, which runs models, and ``accuracy``, which judges. Input: a loaded entry.
Output: ``Expected``, and the entry in the precision in which it is compared.
Invariants: eager's kernels are told to give the same numbers every time, as upstream judges them; compiled models run
as users run them. TF32 is off, and no kernel is chosen by its time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.benchmarks.models.entry import Entry, Loaded
from mixbackend.benchmarks.one_model import steps
from mixbackend.benchmarks.one_model.accuracy import Judgement, Phase, Rule, errors, judge, rule_for
from mixbackend.benchmarks.one_model.precision import Precision, cast


@dataclass(frozen=True, slots=True)
class Expected:
    """Results of eager as ``steps.run`` collects them.

    Attributes:
        first, second: of two equal runs.
        exact: of float64; ``None`` where the model cannot run so.
        rule: how strictly others are held against them.
    """

    first: list[Any]
    second: list[Any]
    exact: list[Any] | None
    rule: Rule

    def judge(self, results: list[Any]) -> Judgement:
        """Whether results of a compiled model are right."""
        return judge(self.first, self.second, results, self.exact, self.rule)

    def errors(self, results: list[Any]) -> tuple[float, float] | tuple[None, None]:
        """Of these results and of eager's against float64."""
        return errors(self.first, results, self.exact) or (None, None)


def expected_of(
    entry: Entry, phase: Phase, precision: Precision, device: str, loaded: Loaded, calls: int
) -> tuple[Expected, Loaded]:
    """Run eager.

    Args:
        loaded: module and inputs in float32; the module is cast in place.
        calls: of each run; the first and the last are compared.

    Returns:
        What is expected, and module and inputs in the precision.

    Raises:
        Exception: whatever eager raises.
    """
    _round_as_upstream()
    with _repeatable():
        exact = steps.run_exact(entry, phase, loaded, calls)
        loaded = cast(loaded, precision)
        step = steps.step_of(entry, phase, precision, device)
        first, second = (steps.run(entry, phase, loaded, step, calls) for _ in range(2))
    rule = rule_for(entry.family, entry.name, phase, precision, torch.device(device).type)
    return Expected(first, second, exact, rule), loaded


@contextlib.contextmanager
def _repeatable() -> Iterator[None]:
    """The same numbers every time: for this, backends have other kernels, or none."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False


def _round_as_upstream() -> None:
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
