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

ELEMENTS_AT_ONCE = 1 << 22
"""So many elements are compared at a time: the comparison has a dozen values of each in float64, so this bounds its
memory at about 400 MB. Larger results are compared piece by piece, with the same verdict."""


class _Distances(NamedTuple):
    """How far a tensor is from what it should be, and eager's from the same.

    Attributes:
        odd: elements that are infinite or NaN and should not be.
        measured: elements with distances that count.
        squares, eager_squares: sums over these.
        exact_squares: sum over the squares of the reference itself.
        peak, eager_peak: the largest distances.
        scale: largest magnitude of the reference.
    """

    odd: float
    measured: float
    squares: float
    eager_squares: float
    exact_squares: float
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
        measure: ``rms``, ``max``, ``nonfinite``, ``integer``, ``shape`` or ``dtype``; ``random`` where the generator
            that the call drew from is not where eager leaves it.
    """

    output: int
    error: float
    eager_error: float
    allowed: float
    measure: str

    def __str__(self) -> str:
        if self.measure == "random":
            return "torch's random generator is not where eager leaves it"
        return (
            f"output {self.output} is off by {self.error:.3g} ({self.measure}); "
            f"eager is off by {self.eager_error:.3g}, allowed {self.allowed:.3g}"
        )


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far results are from a float64 reference, root mean square.

    Attributes:
        error: of the results.
        eager_error: of eager's.
    """

    error: float
    eager_error: float

    @property
    def ratio(self) -> float:
        """Times eager's own distance; infinite where eager alone is exact."""
        return self.error / self.eager_error if self.eager_error else math.inf if self.error else 1.0

    def worse(self, other: Accuracy | None) -> Accuracy:
        """The one that is farther off beside eager."""
        return self if other is None or self.ratio >= other.ratio else other


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output held against eager and the reference.

    Attributes:
        deviation: ``None`` if the output is within the budget.
        eager_error: eager's distance from the reference, root mean square; 0 for results that are no floating ones.
        size: root mean square of the reference.
        error: the output's own distance, likewise.
    """

    deviation: Deviation | None
    eager_error: float = 0.0
    size: float = 0.0
    error: float = 0.0

    def proves_little(self, budget: ErrorBudget) -> bool:
        """Whether eager is so far off that zeros would have passed, too."""
        return self.eager_error > 0 and budget.factor * self.eager_error >= self.size


def find_deviation(
    index: int,
    result: torch.Tensor,
    eager: torch.Tensor,
    reference: torch.Tensor,
    budget: ErrorBudget,
    noise: torch.Tensor | None = None,
) -> Deviation | None:
    """Whether one output is farther off than its budget; see ``compare``."""
    return compare(index, result, eager, reference, budget, noise).deviation


def compare(
    index: int,
    result: torch.Tensor,
    eager: torch.Tensor,
    reference: torch.Tensor,
    budget: ErrorBudget,
    noise: torch.Tensor | None = None,
) -> Comparison:
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
        return Comparison(Deviation(index, float("inf"), 0.0, 0.0, "shape"))
    if result.dtype != eager.dtype:
        return Comparison(Deviation(index, float("inf"), 0.0, 0.0, "dtype"))
    if result.numel() == 0:
        return Comparison(None)
    if not (result.is_floating_point() or result.is_complex()):
        count = _differing(result, eager, reference)
        return Comparison(Deviation(index, float(count), 0.0, 0.0, "integer") if count else None)
    found = _finite_distances(result, eager, reference) if noise is None else None
    return _floating(index, result, found or _distances(result, eager, reference, noise), budget)


def _differing(result: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> int:
    """How many whole numbers are neither eager's nor the reference's."""
    pieces = zip(*map(_slices, (result, eager, reference)), strict=True)
    return sum(int(((mine != theirs) & (mine != exact.to(mine.dtype))).sum()) for mine, theirs, exact in pieces)


def _floating(index: int, result: torch.Tensor, found: _Distances, budget: ErrorBudget) -> Comparison:
    if found.odd:
        return Comparison(Deviation(index, found.odd, 0.0, 0.0, "nonfinite"))
    if not found.measured:
        return Comparison(None)
    floor = budget.floor * torch.finfo(result.dtype).eps * found.scale
    squares = (found.squares, found.eager_squares, found.exact_squares)
    rms, eager_rms, size = (math.sqrt(value / result.numel()) for value in squares)
    for measure, off, eager_off, slack in (
        ("rms", rms, eager_rms, 1.0),
        ("max", found.peak, found.eager_peak, _PEAK_SLACK),
    ):
        allowed = slack * (budget.factor * eager_off + floor)
        if not off <= allowed:
            return Comparison(Deviation(index, off, eager_off, allowed, measure), eager_rms, size, rms)
    return Comparison(None, eager_rms, size, rms)


def _finite_distances(result: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> _Distances | None:
    """What ``_distances`` says where everything is finite, ``None`` where something is not.

    Three kinds of kernels instead of a dozen: on a GPU each kind is loaded at its first use, which takes longer than
    running it.
    """
    pieces = zip(*map(_slices, (result, eager, reference)), strict=True)
    rows = torch.stack([_norms(*parts) for parts in pieces]).tolist()
    if not all(math.isfinite(value) for row in rows for value in row):
        return None
    *lengths, peaks, eager_peaks, scales = zip(*rows, strict=True)
    mine, theirs, exact = (sum(length * length for length in item) for item in lengths)
    return _Distances(0.0, float(result.numel()), mine, theirs, exact, max(peaks), max(eager_peaks), max(scales))


def _norms(result: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Lengths of the result's error, of eager's, and of the reference; then the largest magnitude of each."""
    wide = torch.complex128 if result.is_complex() else torch.float64
    exact = reference.to(wide)
    errors = [part.to(wide) - exact for part in (result, eager)]
    orders = (2, math.inf)
    return torch.stack([torch.linalg.vector_norm(item, order) for order in orders for item in (*errors, exact)])


def _distances(
    result: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor, noise: torch.Tensor | None
) -> _Distances:
    """The tallies of all pieces."""
    tensors = (result, eager, reference) if noise is None else (result, eager, reference, noise)
    tallies = torch.stack([_tally(*parts) for parts in zip(*map(_slices, tensors), strict=True)])
    return _Distances(*tallies[:, :5].sum(0).tolist(), *tallies[:, 5:].amax(0).tolist())


def _slices(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A tensor along its longest dimension, so that what is computed of it in float64 takes little memory."""
    if values.numel() <= ELEMENTS_AT_ONCE:
        return (values,)
    longest = max(range(values.dim()), key=lambda axis: values.shape[axis])
    return values.split(max(1, values.shape[longest] * ELEMENTS_AT_ONCE // values.numel()), longest)


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
    size = exact.abs()
    sums = (odd.sum(), measured.sum(), *(item.square().sum() for item in (error, eager_error, size)))
    return torch.stack([value.double() for value in (*sums, error.max(), eager_error.max(), size.max())])


def _same(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | (torch.isnan(left) & torch.isnan(right))
