"""Windows over a dimension: which positions each one covers, and which windows cover a position.

Place: below the rules of pooling, their gradients, ``im2col`` and ``col2im``.
Input: an index of the windows, or of the positions, and a tap (a number or a loop index). Output: the other index and
what must hold for it to count.
Invariants: where the conditions hold, the index is in range; conditions that always hold are not stated.
"""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import Ranges, floor_div
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, all_of, apply, compute_dtype
from mixbackend.backends.codegen.lower.access import conditions_inside, integer
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

UNROLLED_TAPS = 30
"""Windows up to this many positions become one expression, larger ones a reduction."""

Place = tuple[sympy.Expr, tuple[Expr, ...]]
"""An index, and what must hold for it to count."""


class Windows(ABC):
    """Windows along one dimension.

    Attributes:
        size: of the dimension.
        count: number of windows.
        taps: positions of a window, at most.
        overlaps: windows that cover one position, at most.
    """

    size: sympy.Expr
    count: sympy.Expr

    @property
    @abstractmethod
    def taps(self) -> Any:
        """See the class."""

    @property
    @abstractmethod
    def overlaps(self) -> Any:
        """See the class."""

    @abstractmethod
    def position(self, window: sympy.Expr, tap: Any, ranges: Ranges) -> Place:
        """A position of a window."""

    @abstractmethod
    def window(self, position: sympy.Expr, tap: Any, ranges: Ranges) -> Place:
        """A window that covers a position."""


@dataclass(frozen=True)
class StridedWindows(Windows):
    """Windows of equal size at equal distances, over a dimension padded on both sides."""

    size: sympy.Expr
    count: sympy.Expr
    kernel: int
    stride: int
    padding: int = 0
    dilation: int = 1

    @property
    def taps(self) -> int:
        """Positions of a window."""
        return self.kernel

    @property
    def overlaps(self) -> int:
        """Windows that cover one position, at most."""
        return -(-((self.kernel - 1) * self.dilation + 1) // self.stride)

    def first(self, window: Any) -> sympy.Expr:
        """Where a window starts; negative inside the padding."""
        return sympy.sympify(window) * self.stride - self.padding

    def position(self, window: sympy.Expr, tap: Any, ranges: Ranges) -> Place:
        """A position of a window, if it is not in the padding."""
        place = self.first(window) + tap * self.dilation
        lowest = highest = tap
        if not isinstance(tap, int):
            lowest, highest = 0, self.kernel - 1
        least, most = lowest * self.dilation - self.padding, self.first(self.count - 1) + highest * self.dilation
        return place, conditions_inside(place, self.size, least, most)

    def window(self, position: sympy.Expr, tap: Any, ranges: Ranges) -> Place:
        """The ``tap``-th window, backwards from the last that starts at or before the position, if it reaches it.

        With dilation it may still skip the position.
        """
        window = floor_div(position + self.padding, self.stride, ranges) - tap
        lowest = highest = tap
        if not isinstance(tap, int):
            lowest, highest = 0, self.overlaps - 1
        least = sympy.Integer(self.padding // self.stride) - highest
        most = floor_div(self.size - 1 + self.padding, self.stride, ranges) - lowest
        inside = conditions_inside(window, self.count, least, most)
        reach = (self.kernel - 1) * self.dilation + 1
        distance = position - self.first(window)
        reaches = conditions_inside(distance, reach, 0, (highest + 1) * self.stride - 1)
        return window, (*inside, *reaches)

    def covered(self, window: sympy.Expr, with_padding: bool) -> sympy.Expr:
        """How many positions an undilated window covers, those in the padding counted or not.

        A last window that ``ceil_mode`` lets stick out of the padding covers nothing there.
        """
        first, last = self.first(window), self.size + (self.padding if with_padding else 0)
        end, start = first + self.kernel, first
        if not sympy.expand(last - self.first(self.count - 1) - self.kernel).is_nonnegative:
            end = sympy.Min(end, last)
        if not with_padding and self.padding > 0:
            start = sympy.Max(start, 0)
        return sympy.expand(end - start)


@dataclass(frozen=True)
class AdaptiveWindows(Windows):
    """As many windows as asked for, evenly spread; they overlap where the sizes do not divide."""

    size: sympy.Expr
    count: sympy.Expr

    @property
    def taps(self) -> Any:
        """Positions of a window, at most."""
        return _longest_share(self.size, self.count)

    @property
    def overlaps(self) -> Any:
        """Windows that cover one position, at most."""
        return _longest_share(self.count, self.size)

    def position(self, window: sympy.Expr, tap: Any, ranges: Ranges) -> Place:
        """A position of a window."""
        return _share(self.size, self.count, window, tap, ranges)

    def window(self, position: sympy.Expr, tap: Any, ranges: Ranges) -> Place:
        """A window that covers a position: positions share the windows as windows share the positions."""
        return _share(self.count, self.size, position, tap, ranges)

    def length(self, window: sympy.Expr, ranges: Ranges) -> sympy.Expr:
        """How many positions a window covers."""
        start, end = _borders(self.size, self.count, window, ranges)
        return end - start


def _borders(size: Any, count: Any, part: Any, ranges: Ranges) -> tuple[sympy.Expr, sympy.Expr]:
    """Start and end of one of ``count`` parts of ``size`` positions: ``floor`` and ``ceil`` of the exact borders."""
    return floor_div(part * size, count, ranges), floor_div((part + 1) * size + count - 1, count, ranges)


def _share(size: Any, count: Any, part: Any, tap: Any, ranges: Ranges) -> Place:
    start, end = _borders(size, count, part, ranges)
    length = sympy.expand(end - start)
    always = tap + 1 if isinstance(tap, int) else _longest_share(size, count)
    if sympy.expand(length - always).is_nonnegative:
        return start + tap, ()
    return start + tap, (integer(tap) < integer(length),)


def _longest_share(size: Any, count: Any) -> Any:
    if not (size.is_Integer and count.is_Integer):
        return floor_div(size + count - 1, count, {}) + 1
    size, count = int(size), int(count)
    if size == 0 or count == 0:
        return 1
    return max(-(-(part + 1) * size // count) - part * size // count for part in range(count))


def is_unrolled(taps: Sequence[Any]) -> bool:
    """Whether that many taps become one expression."""
    return all(isinstance(number, int) for number in taps) and sympy.prod(taps) <= UNROLLED_TAPS


def joined(places: Sequence[Place]) -> tuple[Index, Expr | None]:
    """Places of several dimensions as one index and one mask."""
    conditions = itertools.chain.from_iterable(needed for _, needed in places)
    return tuple(place for place, _ in places), all_of(conditions)


def folded(
    lowering: Lowering,
    kind: Literal["sum", "max"],
    sizes: Index,
    dtype: torch.dtype,
    taps: Sequence[Any],
    term: Callable[[Index, Sequence[Any]], Expr],
    finish: Callable[[Index, Expr], Expr] = lambda index, value: value,
) -> Tensor:
    """A fold over taps for every index: unrolled where they are few, otherwise a reduction.

    Args:
        term: value at an index for one tap per dimension; what changes nothing where there is none.
        finish: from the fold to the value.
    """
    if not is_unrolled(taps):
        (whole,) = lowering.reduce(kind, sizes, taps, term, (compute_dtype(dtype),))
        return lowering.map(sizes, dtype, lambda index: finish(index, whole.at(index)))
    op = {"sum": "add", "max": "maximum"}[kind]
    wide = compute_dtype(dtype)

    def value(index: Index) -> Expr:
        terms = [term(index, choice) for choice in itertools.product(*map(range, taps))]
        if kind == "sum":
            # As eager, from zero on: a sum of negative zeros is a positive one.
            terms.insert(0, Constant(wide, 0.0 if wide.is_floating_point else 0))
        return finish(index, functools.reduce(lambda left, right: apply(op, left, right), terms))

    return lowering.map(sizes, dtype, value)
