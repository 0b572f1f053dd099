"""When a result counts as right: no farther from a float64 reference than eager is, within a factor.

Place: used by run-time verification, by conformance tests and by benchmarks.
Input: three results of the same computation. Output: the worst deviation, or ``None``.
The idea of comparing distances to a float64 reference instead of using a fixed tolerance is torch's own benchmark rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixbackend.contracts.backend import ErrorBudget

_PEAK_SLACK = 4.0
"""A single element may be this many times farther off than the root mean square allows."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far a result is off.

    Attributes:
        output: index of the output.
        error: its distance from the reference, root mean square (or largest, as ``measure`` says).
        eager_error: eager's own distance.
        allowed: largest distance that would have passed.
        measure: ``rms``, ``max``, ``nonfinite``, ``integer``, ``shape`` or ``dtype``.
    """

    output: int
    error: float
    eager_error: float
    allowed: float
    measure: str

    def __str__(self) -> str:
        return (
            f"output {self.output} is off by {self.error:.3g} ({self.measure}); "
            f"eager is off by {self.eager_error:.3g}, allowed {self.allowed:.3g}"
        )


def find_deviation(
    index: int,
    result: torch.Tensor,
    eager: torch.Tensor,
    reference: torch.Tensor,
    budget: ErrorBudget,
    noise: torch.Tensor | None = None,
) -> Deviation | None:
    """Compare one output.

    Where neither eager nor the reference is infinite or NaN, distances to the reference count. Where one is, the result
    is what eager has, or what the reference has (rounded to the result's type), or, where the reference is finite and
    eager overflowed on its way, within the backend's own floor of the reference; there an infinity counts as the
    largest number of the type.

    Args:
        index: of the output, for the answer.
        result: what the backend returned.
        eager: what eager returned, same dtype.
        reference: what eager returns in float64 (the same as ``eager`` for integer and boolean results).
        budget: of the backend.
        noise: how far rounding alone moves what eager returns, where that is known; an element of eager's that happens
            to be nearer to the reference counts as so far from it.
    """
    if tuple(result.shape) != tuple(eager.shape):
        return Deviation(index, float("inf"), 0.0, 0.0, "shape")
    if result.dtype != eager.dtype:
        return Deviation(index, float("inf"), 0.0, 0.0, "dtype")
    if result.numel() == 0:
        return None
    if not (result.is_floating_point() or result.is_complex()):
        wrong = (result != eager) & (result != reference.to(result.dtype))
        count = int(wrong.sum())
        return Deviation(index, float(count), 0.0, 0.0, "integer") if count else None
    return _floating(index, result, eager, reference, budget, noise)


def _floating(
    index: int,
    result: torch.Tensor,
    eager: torch.Tensor,
    reference: torch.Tensor,
    budget: ErrorBudget,
    noise: torch.Tensor | None,
) -> Deviation | None:
    wide = torch.complex128 if result.is_complex() else torch.float64
    mine, theirs, exact = result.to(wide), eager.to(wide), reference.to(wide)
    rounded = exact.to(result.dtype).to(wide)
    if result.is_floating_point():
        overflowed = torch.isinf(mine) & ~torch.isfinite(theirs) & ~_same(mine, theirs) & torch.isfinite(rounded)
        largest = torch.finfo(result.dtype).max
        mine = torch.where(overflowed, mine.clamp(-largest, largest), mine)
    measured = torch.isfinite(mine) & torch.isfinite(exact)
    odd = int((~measured & ~_same(mine, theirs) & ~_same(mine, exact) & ~_same(mine, rounded)).sum())
    if odd:
        return Deviation(index, float(odd), 0.0, 0.0, "nonfinite")
    if not bool(measured.any()):
        return None
    zero = torch.zeros((), dtype=wide)
    exact = torch.where(measured, exact, zero)
    error = torch.where(measured, mine - exact, zero).abs()
    eager_error = torch.where(measured & torch.isfinite(theirs), theirs - exact, zero).abs()
    if noise is not None:
        eager_error = torch.maximum(eager_error, noise)
    scale = float(exact.abs().max())
    floor = budget.floor * torch.finfo(result.dtype).eps * scale
    for measure, off, eager_off, slack in (
        ("rms", _rms(error), _rms(eager_error), 1.0),
        ("max", float(error.max()), float(eager_error.max()), _PEAK_SLACK),
    ):
        allowed = slack * (budget.factor * eager_off + floor)
        if not off <= allowed:
            return Deviation(index, off, eager_off, allowed, measure)
    return None


def _same(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | (torch.isnan(left) & torch.isnan(right))


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())
