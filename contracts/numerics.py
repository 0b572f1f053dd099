"""When a result counts as right: no farther from a float64 reference than eager is, within a factor.

Place: used by run-time verification, by conformance tests and by benchmarks.
Input: three results of the same computation. Output: the worst deviation, or ``None``.
The idea of comparing distances to a float64 reference instead of using a fixed tolerance is torch's own benchmark rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mixbackend.contracts.backend import ErrorBudget

_COMPARED_AT_ONCE = 1 << 22
"""So many elements are compared at a time: the comparison has a dozen values of each in float64."""


class _Distances(NamedTuple):
    """How far a tensor is from what it should be, and eager's from the same.

    Attributes:
        odd: elements that are infinite or NaN and should not be.
        measured: elements whose distance counts.
        squares, eager_squares: sums over these.
        peak, eager_peak: the largest distances.
        scale: largest magnitude of the reference.
    """

    odd: float
    measured: float
    squares: float
    eager_squares: float
    peak: float
    eager_peak: float
    scale: float


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
    finite = _finite_distances(result, eager, reference) if noise is None else None
    found = finite or _distances(result, eager, reference, noise)
    if found.odd:
        return Deviation(index, found.odd, 0.0, 0.0, "nonfinite")
    if not found.measured:
        return None
    floor = budget.floor * torch.finfo(result.dtype).eps * found.scale
    rms, eager_rms = (math.sqrt(squares / result.numel()) for squares in (found.squares, found.eager_squares))
    for measure, off, eager_off, slack in (
        ("rms", rms, eager_rms, 1.0),
        ("max", found.peak, found.eager_peak, _PEAK_SLACK),
    ):
        allowed = slack * (budget.factor * eager_off + floor)
        if not off <= allowed:
            return Deviation(index, off, eager_off, allowed, measure)
    return None


def _finite_distances(result: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> _Distances | None:
    """What ``_distances`` says where everything is finite, ``None`` where something is not.

    Three kinds of kernels instead of a dozen: on a GPU each kind is loaded at its first use, which takes longer than
    running it.
    """
    pieces = zip(*map(_slices, (result, eager, reference)), strict=True)
    rows = torch.stack([_norms(*parts) for parts in pieces]).tolist()
    if not all(math.isfinite(value) for row in rows for value in row):
        return None
    lengths, eager_lengths, peaks, eager_peaks, scales = zip(*rows, strict=True)
    squares, eager_squares = (sum(length * length for length in item) for item in (lengths, eager_lengths))
    return _Distances(0.0, float(result.numel()), squares, eager_squares, max(peaks), max(eager_peaks), max(scales))


def _norms(result: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Lengths of the result's error and of eager's, the largest of both, and the largest magnitude of the reference."""
    wide = torch.complex128 if result.is_complex() else torch.float64
    exact = reference.to(wide)
    errors = [part.to(wide) - exact for part in (result, eager)]
    lengths = [torch.linalg.vector_norm(error) for error in errors]
    return torch.stack([*lengths, *(torch.linalg.vector_norm(item, math.inf) for item in (*errors, exact))])


def _distances(
    result: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor, noise: torch.Tensor | None
) -> _Distances:
    """The tallies of all pieces."""
    tensors = (result, eager, reference) if noise is None else (result, eager, reference, noise)
    tallies = torch.stack([_tally(*parts) for parts in zip(*map(_slices, tensors), strict=True)])
    return _Distances(*tallies[:, :4].sum(0).tolist(), *tallies[:, 4:].amax(0).tolist())


def _slices(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A tensor along its longest dimension, so that what is computed of it in float64 takes little memory."""
    if values.numel() <= _COMPARED_AT_ONCE:
        return (values,)
    longest = max(range(values.dim()), key=lambda axis: values.shape[axis])
    return values.split(max(1, values.shape[longest] * _COMPARED_AT_ONCE // values.numel()), longest)


def _tally(
    result: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor, noise: torch.Tensor | None = None
) -> torch.Tensor:
    """Of some elements: the fields of ``_Distances``, in order."""
    wide = torch.complex128 if result.is_complex() else torch.float64
    mine, theirs, exact = result.to(wide), eager.to(wide), reference.to(wide)
    rounded = exact.to(result.dtype).to(wide)
    if result.is_floating_point():
        overflowed = torch.isinf(mine) & ~torch.isfinite(theirs) & ~_same(mine, theirs) & torch.isfinite(rounded)
        largest = torch.finfo(result.dtype).max
        mine = torch.where(overflowed, mine.clamp(-largest, largest), mine)
    measured = torch.isfinite(mine) & torch.isfinite(exact)
    odd = ~measured & ~_same(mine, theirs) & ~_same(mine, exact) & ~_same(mine, rounded)
    zero = torch.zeros((), dtype=wide)
    exact = torch.where(measured, exact, zero)
    error = torch.where(measured, mine - exact, zero).abs()
    eager_error = torch.where(measured & torch.isfinite(theirs), theirs - exact, zero).abs()
    if noise is not None:
        eager_error = torch.maximum(eager_error, noise)
    sums = (odd.sum(), measured.sum(), error.square().sum(), eager_error.square().sum())
    return torch.stack([value.double() for value in (*sums, error.max(), eager_error.max(), exact.abs().max())])


def _same(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | (torch.isnan(left) & torch.isnan(right))
