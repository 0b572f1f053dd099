"""Rules that take windows out of a tensor and put them back.

Place: registered by ``lower.table``.
Semantics: everything is index arithmetic; where windows overlap on the way back, every element gathers its copies.
Non-goals: ``unfold`` itself, which is a view.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import sympy

from mixbackend.backends.codegen.ir.indices import flatten, floor_div, modulo, unflatten
from mixbackend.backends.codegen.ir.scalar import Expr, all_of, apply
from mixbackend.backends.codegen.lower.access import addressable, conditions_inside, integer, load
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.pooling import strided_windows
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.windows import StridedWindows, folded, joined


@rule("aten.im2col.default")
def im2col(
    lowering: Lowering,
    self: Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """Windows as columns: channels and taps in one dimension, windows in the other."""
    source = addressable(lowering, self)
    counts = _window_counts(self.sizes, kernel_size, dilation, padding, stride)
    axes = strided_windows(self, counts, kernel_size, stride, padding, dilation)
    columns = (self.sizes[-3], *(sympy.Integer(axis.kernel) for axis in axes))

    def value(index: Index) -> Expr:
        channel, *taps = unflatten(index[-2], columns, lowering.ranges)
        windows = unflatten(index[-1], counts, lowering.ranges)
        place, mask = joined(
            [axis.position(window, tap, lowering.ranges) for axis, window, tap in zip(axes, windows, taps, strict=True)]
        )
        return load(source, (*index[:-2], channel, *place), mask=mask)

    return lowering.map(lowering.output_sizes, self.dtype, value)


def _window_counts(
    sizes: Index, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Index:
    """Number of windows along the last two dimensions."""
    arguments = (kernel, dilation, padding, stride)
    return tuple(
        floor_div(size + 2 * margin - spacing * (taps - 1) - 1, step, {}) + 1
        for size, taps, spacing, margin, step in zip(sizes[-2:], *arguments, strict=True)
    )


@rule("aten.col2im.default")
def col2im(
    lowering: Lowering,
    self: Tensor,
    output_size: Sequence[Any],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """Columns back to their windows; every element adds up its copies, tap by tap."""
    source, sizes = addressable(lowering, self), lowering.output_sizes
    counts = _window_counts(sizes, kernel_size, dilation, padding, stride)
    image = Tensor(sizes, self.dtype, self.at)
    axes = strided_windows(image, counts, kernel_size, stride, padding, dilation)
    columns = (sizes[-3], *(sympy.Integer(axis.kernel) for axis in axes))

    def copy(index: Index, taps: Sequence[Any]) -> Expr:
        places = [_window_of_tap(lowering, *each) for each in zip(axes, index[-2:], taps, strict=True)]
        mask = all_of(itertools.chain.from_iterable(needed for _, needed in places))
        column = flatten((index[-3], *taps), columns)
        return load(source, (*index[:-3], column, flatten([place for place, _ in places], counts)), mask=mask)

    return folded(lowering, "sum", sizes, self.dtype, [axis.kernel for axis in axes], copy)


def _window_of_tap(
    lowering: Lowering, axis: StridedWindows, position: sympy.Expr, tap: Any
) -> tuple[sympy.Expr, tuple[Expr, ...]]:
    """The window that has a position at a tap, and what must hold for it to be there."""
    start = position + axis.padding - tap * axis.dilation
    window, rest = floor_div(start, axis.stride, lowering.ranges), modulo(start, axis.stride, lowering.ranges)
    inside = conditions_inside(window, axis.count, -1, axis.count)
    return window, (*inside, *((apply("eq", integer(rest), integer(0)),) if rest != 0 else ()))


@rule("aten.unfold_backward.default")
def unfold_backward(
    lowering: Lowering, grad_in: Tensor, input_sizes: Sequence[Any], dim: int, size: int, step: int
) -> Tensor:
    """Gradient of overlapping windows along one dimension; their taps are the last dimension."""
    gradient, sizes = addressable(lowering, grad_in), lowering.output_sizes
    if not sizes:
        raise RefusedError("rank", "windows of a tensor without dimensions")
    axis = dim % len(sizes)
    windows = StridedWindows(sizes[axis], gradient.sizes[axis], int(size), int(step))

    def copy(index: Index, taps: Sequence[Any]) -> Expr:
        window, conditions = windows.window(index[axis], taps[0], lowering.ranges)
        place = (*index[:axis], window, *index[axis + 1 :], index[axis] - windows.first(window))
        return load(gradient, place, mask=all_of(conditions))

    return folded(lowering, "sum", sizes, grad_in.dtype, [windows.overlaps], copy)
