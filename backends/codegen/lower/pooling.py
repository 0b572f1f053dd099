"""Rules of pooling.

Place: registered by ``lower.table``; gradients are in ``pooling_backward``.
Semantics: the maximum of a window is NaN if it holds one; the index that goes with it is that of the last NaN,
otherwise of the first maximum, as a row-major position in the plane of the input. Averages divide the sum by the number
of covered positions, which the arguments define; integers are divided with truncation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import FloorDiv, flatten
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, apply
from mixbackend.backends.codegen.lower.access import addressable, integer, load
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import constant
from mixbackend.backends.codegen.lower.rules import rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.windows import (
    AdaptiveWindows,
    StridedWindows,
    Windows,
    folded,
    is_unrolled,
    joined,
)


def strided_windows(
    tensor: Tensor,
    counts: Index,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (),
) -> tuple[StridedWindows, ...]:
    """Windows over the last dimensions, from a pooling op's arguments, each with a number per dimension.

    Args:
        counts: sizes of the pooled tensor.
        dilation: none for 1.
    """
    spatial = len(kernel_size)
    return tuple(
        StridedWindows(size, count, *numbers)
        for size, count, *numbers in zip(
            tensor.sizes[-spatial:],
            counts[-spatial:],
            *(tuple(map(int, numbers)) for numbers in (kernel_size, stride, padding, dilation or (1,) * spatial)),
            strict=True,
        )
    )


def adaptive_windows(tensor: Tensor, counts: Index) -> tuple[Windows, ...]:
    """Windows over the last dimensions, evenly spread; equal ones where the sizes divide."""
    return tuple(_adaptive(size, count) for size, count in zip(tensor.sizes[-len(counts) :], counts, strict=True))


def _adaptive(size: sympy.Expr, count: sympy.Expr) -> Windows:
    if size.is_Integer and count.is_Integer and count > 0 and size % count == 0:
        length = int(size // count)
        return StridedWindows(size, count, length, length)
    return AdaptiveWindows(size, count)


def window_element(
    lowering: Lowering, source: Tensor, axes: Sequence[Windows], index: Index, taps: Sequence[Any], other: Any
) -> Expr:
    """The element of a padded tensor at a tap of the window that an index of the pooled tensor names."""
    lead = index[: len(index) - len(axes)]
    places = [
        axis.position(window, tap, lowering.ranges)
        for axis, window, tap in zip(axes, index[len(lead) :], taps, strict=True)
    ]
    place, mask = joined(places)
    return load(source, (*lead, *place), mask=mask, other=other)


# -- maximum --------------------------------------------------------------------------------------------------------


@rule("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool(
    lowering: Lowering,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Tensor, Tensor]:
    """Largest values of windows, and where they are."""
    return _max_pool(
        lowering, self, lambda counts: strided_windows(self, counts, kernel_size, stride, padding, dilation)
    )


@rule("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(lowering: Lowering, self: Tensor, output_size: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Largest values of evenly spread windows, and where they are."""
    spatial = len(output_size)
    return _max_pool(lowering, self, lambda counts: adaptive_windows(self, counts[-spatial:]))


def _max_pool(
    lowering: Lowering, tensor: Tensor, make: Callable[[Index], tuple[Windows, ...]]
) -> tuple[Tensor, Tensor]:
    sizes = lowering.output_sizes
    axes, source = make(sizes), addressable(lowering, tensor)
    lowest = _lowest(tensor.dtype)

    def element(index: Index, taps: Sequence[Any]) -> Expr:
        return window_element(lowering, source, axes, index, taps, lowest)

    taps = [axis.taps for axis in axes]
    values = folded(lowering, "max", sizes, tensor.dtype, taps, element)
    locate = _located_unrolled if is_unrolled(taps) else _located
    return values, locate(lowering, values, axes, element)


def _lowest(dtype: torch.dtype) -> int | float:
    """What a maximum starts from."""
    return -float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min


_Element = Callable[[Index, Sequence[Any]], Expr]


def _located_unrolled(lowering: Lowering, values: Tensor, axes: Sequence[Windows], element: _Element) -> Tensor:
    """Positions of the maxima, each tap compared with the best before it.

    What is selected is the distance from the window's start, in 32 bits where they suffice: as wide as the values.
    """
    plane = tuple(axis.size for axis in axes)
    extent = sympy.prod(plane)
    narrow = torch.int32 if extent.is_Integer and extent < 2**31 else torch.int64

    def distance(taps: Sequence[Any]) -> Expr:
        steps = [tap * getattr(axis, "dilation", 1) for axis, tap in zip(axes, taps, strict=True)]
        return _index_value(flatten(steps, plane), narrow)

    def value(index: Index) -> Expr:
        windows = index[len(index) - len(axes) :]
        choices = list(itertools.product(*(range(axis.taps) for axis in axes)))
        best: Expr = Constant(values.compute, _lowest(values.dtype))
        chosen = distance([_first_tap(axis, window) for axis, window in zip(axes, windows, strict=True)])
        for taps in choices:
            new = element(index, taps)
            chosen = apply("where", _replaces(new, best), distance(taps), chosen)
            best = apply("maximum", best, new)
        return integer(_start(lowering, axes, windows)) + lowering.cast(chosen, torch.int64)

    return lowering.map(values.sizes, torch.int64, value)


def _start(lowering: Lowering, axes: Sequence[Windows], windows: Index) -> sympy.Expr:
    """Position of a window's first tap in the plane, as if the padding were part of it."""
    starts = [axis.position(window, 0, lowering.ranges)[0] for axis, window in zip(axes, windows, strict=True)]
    return flatten(starts, tuple(axis.size for axis in axes))


def _first_tap(axis: Windows, window: sympy.Expr) -> sympy.Expr:
    """The first tap that is not in the padding: what eager starts from."""
    if not isinstance(axis, StridedWindows) or axis.padding == 0:
        return sympy.Integer(0)
    return FloorDiv(sympy.Max(-axis.first(window), 0) + axis.dilation - 1, sympy.Integer(axis.dilation))


def _index_value(expression: sympy.Expr, dtype: torch.dtype) -> Expr:
    return Constant(dtype, int(expression)) if expression.is_Integer else IndexValue(dtype, expression)


def _replaces(new: Expr, best: Expr) -> Expr:
    """Whether eager goes on with a new element: a larger one, and every NaN."""
    larger = new > best
    return larger | apply("isnan", new) if new.dtype.is_floating_point else larger


def _located(lowering: Lowering, values: Tensor, axes: Sequence[Windows], element: _Element) -> Tensor:
    """Positions of the maxima, by folding over the numbers of a window's taps: the last NaN, else the first maximum.

    Taps in the padding have no number: they hold the lowest value, which a maximum may be too.
    """
    taps = tuple(sympy.sympify(axis.taps) for axis in axes)
    number, nothing = sympy.prod(taps), integer(-1)
    is_float = values.dtype.is_floating_point

    def rank(index: Index, choice: Sequence[Any]) -> Expr:
        """Larger for the tap to be chosen; -1 for those that are not the maximum."""
        new, largest = element(index, choice), values.at(index)
        order = flatten(choice, taps)
        first = apply("where", apply("eq", new, largest), integer(number - 1 - order), nothing)
        if is_float:
            last = apply("where", apply("isnan", new), integer(order), nothing)
            first = apply("where", apply("isnan", largest), last, first)
        mask = _is_there(lowering, axes, index, choice)
        return first if mask is None else apply("where", mask, first, nothing)

    (chosen,) = lowering.reduce("max", values.sizes, taps, rank, (torch.int64,))
    plane = tuple(axis.size for axis in axes)

    def value(index: Index) -> Expr:
        order = integer(number - 1) - chosen.at(index)
        if is_float:
            order = apply("where", apply("isnan", values.at(index)), chosen.at(index), order)
        result = integer(_start(lowering, axes, index[len(index) - len(axes) :]))
        for place, axis in enumerate(axes):
            tap = apply("floor_div", order, integer(sympy.prod(taps[place + 1 :])))
            tap = apply("remainder", tap, integer(taps[place])) if place > 0 else tap
            step = getattr(axis, "dilation", 1) * sympy.prod(plane[place + 1 :])
            result = result + tap * integer(step)
        return result

    return lowering.map(values.sizes, torch.int64, value)


def _is_there(lowering: Lowering, axes: Sequence[Windows], index: Index, taps: Sequence[Any]) -> Expr | None:
    windows = index[len(index) - len(axes) :]
    return joined(
        [axis.position(window, tap, lowering.ranges) for axis, window, tap in zip(axes, windows, taps, strict=True)]
    )[1]


# -- average --------------------------------------------------------------------------------------------------------


def divided(lowering: Lowering, total: Expr, divisor: sympy.Expr) -> Expr:
    """A sum divided by a number of positions; integers are truncated."""
    if divisor == 1:
        return total
    op = "div" if total.dtype.is_floating_point else "trunc_div"
    return apply(op, total, constant(divisor, total.dtype))


def strided_divisor(
    axes: Sequence[StridedWindows], windows: Index, count_include_pad: bool, divisor_override: int | None
) -> sympy.Expr:
    """What the sum of a window is divided by."""
    if divisor_override is not None:
        return sympy.Integer(divisor_override)
    return sympy.prod(axis.covered(window, count_include_pad) for axis, window in zip(axes, windows, strict=True))


def adaptive_divisor(lowering: Lowering, axes: Sequence[Windows], windows: Index) -> sympy.Expr:
    """Number of positions of an evenly spread window."""
    return sympy.prod(
        axis.length(window, lowering.ranges) if isinstance(axis, AdaptiveWindows) else sympy.sympify(axis.taps)
        for axis, window in zip(axes, windows, strict=True)
    )


@rule("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(
    lowering: Lowering,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Averages of windows."""
    axes = strided_windows(self, lowering.output_sizes, kernel_size, stride, padding)
    return _avg_pool(
        lowering, self, axes, lambda windows: strided_divisor(axes, windows, count_include_pad, divisor_override)
    )


@rule("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def adaptive_avg_pool(lowering: Lowering, self: Tensor, output_size: Sequence[Any]) -> Tensor:
    """Averages of evenly spread windows."""
    axes = adaptive_windows(self, lowering.output_sizes[-len(output_size) :])
    return _avg_pool(lowering, self, axes, lambda windows: adaptive_divisor(lowering, axes, windows))


def _avg_pool(
    lowering: Lowering, tensor: Tensor, axes: Sequence[Windows], divisor: Callable[[Index], sympy.Expr]
) -> Tensor:
    source = addressable(lowering, tensor)
    return folded(
        lowering,
        "sum",
        lowering.output_sizes,
        tensor.dtype,
        [axis.taps for axis in axes],
        lambda index, taps: window_element(lowering, source, axes, index, taps, 0),
        lambda index, total: divided(lowering, total, divisor(index[len(index) - len(axes) :])),
    )
