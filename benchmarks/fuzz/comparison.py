"""Hold what was seen of a compiled program against eager and float64.

Place: after ``execution``. Input: observations. Output: findings, each with a kind and a label.
Invariants: whole numbers and facts are equal; a floating result is no farther from float64 than eager is, times a
factor, or no farther than roundings alone move it. A finding that roundings explain is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from mixbackend.benchmarks.fuzz.execution import Observation

FACTOR = 10.0
FLOOR = 32.0
"""Roundings of the largest number of a result that are always allowed."""


@dataclass(frozen=True)
class Finding:
    """One difference.

    Attributes:
        kind: ``value``, ``fact``, ``raises``, ``version`` or ``event``.
        label: of what.
        detail: in words.
        size: of a value's error, relative to the largest number of the reference.
        backend: the one that an event is about.
    """

    kind: str
    label: str
    detail: str
    size: float = 0.0
    backend: str = ""

    def to_dict(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self), "size": self.size if math.isfinite(self.size) else 1e300}

    def __str__(self) -> str:
        return f"{self.kind}: {self.label}: {self.detail}"


def differences(
    mine: Observation, eager: Observation, exact: Observation, shaken: Sequence[Observation] = ()
) -> list[Finding]:
    """All findings, the gravest kind first.

    Args:
        mine: of the compiled program.
        eager: of the program itself.
        exact: of the program in float64; where it has no such value, eager's counts.
        shaken: of the program with roundings.
    """
    if mine.error != eager.error or (mine.error and mine.where != eager.where):
        mine_told, told = (f"{item.where} {item.message}" if item.error else "nothing" for item in (mine, eager))
        label = f"{mine.where or eager.where}: {mine.error or 'nothing'} instead of {eager.error or 'nothing'}"
        return [Finding("raises", label, f"{mine_told}; eager: {told}")]
    found = []
    for label, value in eager.facts.items():
        if mine.facts.get(label, "") != value and (label in mine.facts or not mine.error):
            found.append(Finding("fact", label, f"{mine.facts.get(label, 'missing')}; eager: {value}"))
    for label, tensor in eager.tensors.items():
        if label in mine.tensors and not (eager.error and eager.where in label):
            others = [item.tensors[label] for item in shaken if label in item.tensors]
            difference = _value(label, mine.tensors[label], tensor, exact.tensors.get(label, tensor), others)
            found += [difference] if difference is not None else []
    for label, times in eager.writes.items():
        got = mine.writes.get(label, 0)
        if label in mine.writes and (bool(got) != bool(times) or got > times):
            found.append(Finding("version", label, f"advanced by {got}; eager: {times}"))
    return found


def _value(
    label: str, mine: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, shaken: Sequence[torch.Tensor]
) -> Finding | None:
    if mine.shape != eager.shape or mine.dtype != eager.dtype or not mine.numel():
        return None  # a fact tells it
    if not (mine.is_floating_point() or mine.is_complex()):
        wrong = int((mine != eager).sum())
        return Finding("value", label, f"{wrong} of {mine.numel()} whole numbers differ", 1.0) if wrong else None
    wide = torch.complex128 if mine.is_complex() else torch.float64
    got, theirs, right = mine.to(wide), eager.to(wide), exact.to(wide)
    if right.shape != theirs.shape:
        right = theirs
    finite = torch.isfinite(got) & torch.isfinite(theirs) & torch.isfinite(right)
    odd = ~finite & ~_same(got, theirs) & ~_same(got, right) & ~_same(got, right.to(mine.dtype).to(wide))
    moved = [
        torch.where(finite & torch.isfinite(item.to(wide)), (item.to(wide) - theirs).abs(), 0.0) for item in shaken
    ]
    for item in shaken:
        odd = odd & ~(~torch.isfinite(item.to(wide)) ^ ~torch.isfinite(theirs))
    if bool(odd.any()):
        return Finding("value", label, f"{int(odd.sum())} of {odd.numel()} are infinite or NaN, or should be", math.inf)
    zero = torch.zeros((), dtype=wide)
    errors = torch.where(finite, got - right, zero).abs()
    eager_errors = torch.where(finite, theirs - right, zero).abs()
    scale = float(torch.where(finite, right, zero).abs().max())
    floor = FLOOR * torch.finfo(mine.dtype).eps * scale
    for name, fold in (("root mean square", lambda item: float(item.square().mean().sqrt())), ("largest", _largest)):
        allowed = FACTOR * max([fold(eager_errors), *(fold(item) for item in moved)]) + floor
        if fold(errors) > allowed:
            error = fold(errors)
            told = (
                f"off by {error:.3g} ({name}), eager by {fold(eager_errors):.3g}, allowed {allowed:.3g}, of {scale:.3g}"
            )
            return Finding("value", label, told, error / scale if scale else math.inf)
    return None


def _largest(item: torch.Tensor) -> float:
    return float(item.max())


def _same(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | (torch.isnan(left) & torch.isnan(right))
