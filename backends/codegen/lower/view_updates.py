"""Rules of views written or differentiated: a tensor with a part of it replaced, or a part padded with zeros.

Place: registered by ``lower.table``; functional forms of assignments to slices, and gradients of slices.
Semantics: the part is read under a mask where its positions are not those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import floor_div, modulo
from mixbackend.backends.codegen.ir.scalar import Expr, all_of, apply
from mixbackend.backends.codegen.lower.access import addressable, integer, load
from mixbackend.backends.codegen.lower.broadcast import broadcast_index
from mixbackend.backends.codegen.lower.formula import where
from mixbackend.backends.codegen.lower.lowering import Lowering, ValueFunction
from mixbackend.backends.codegen.lower.promotion import constant, convert
from mixbackend.backends.codegen.lower.reshaping import first_of_slice, position_in
from mixbackend.backends.codegen.lower.rules import rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor


def _zeros(dtype: torch.dtype) -> ValueFunction:
    zero = constant(0, dtype)
    return lambda index: zero


def _replaced(
    lowering: Lowering, part: Tensor, base: ValueFunction, inside: Callable[[Index], tuple[Index, list[Expr]]]
) -> Tensor:
    """The op's output: ``part`` where conditions hold, ``base`` elsewhere.

    Args:
        inside: the index of the part for an index of the whole, and the conditions under which it is in range.
    """
    part, dtype = addressable(lowering, part), lowering.output_dtype

    def value(index: Index) -> Expr:
        place, conditions = inside(index)
        mask = all_of(conditions)
        own = convert(load(part, broadcast_index(part.sizes, place), mask=mask), part.dtype, dtype)
        return own if mask is None else where(mask, own, base(index))

    return lowering.map(lowering.output_sizes, dtype, value)


def _replaced_slice(
    lowering: Lowering, part: Tensor, base: ValueFunction, dim: int, start: Any, end: Any, step: Any
) -> Tensor:
    sizes = lowering.output_sizes
    axis = dim % len(sizes)
    length = part.sizes[axis]
    if length == 0:
        return lowering.map(sizes, lowering.output_dtype, base)
    first = first_of_slice(start, end, step, sizes[axis], length)

    def inside(index: Index) -> tuple[Index, list[Expr]]:
        distance = sympy.expand(index[axis] - first)
        conditions = []
        if first != 0:
            conditions.append(integer(distance) >= integer(0))
        if sympy.expand(first + length * step - sizes[axis]) != 0 or step != 1:
            conditions.append(integer(distance) < integer(length * step))
        if step != 1:
            conditions.append(apply("eq", integer(modulo(distance, step, lowering.ranges)), integer(0)))
        place = floor_div(distance, step, lowering.ranges)
        return (*index[:axis], place, *index[axis + 1 :]), conditions

    return _replaced(lowering, part, base, inside)


@rule("aten.slice_scatter.default")
def slice_scatter(lowering: Lowering, self: Tensor, src: Tensor, dim: int, start: Any, end: Any, step: Any) -> Tensor:
    """``self`` with a slice replaced."""
    return _replaced_slice(lowering, src, self.at, dim, start, end, step)


@rule("aten.slice_backward.default")
def slice_backward(
    lowering: Lowering, grad_output: Tensor, input_sizes: Sequence[Any], dim: int, start: Any, end: Any, step: Any
) -> Tensor:
    """Zeros with a slice replaced."""
    return _replaced_slice(lowering, grad_output, _zeros(grad_output.dtype), dim, start, end, step)


def _replaced_position(lowering: Lowering, part: Tensor, base: ValueFunction, dim: int, index: Any) -> Tensor:
    """A position along a dimension replaced: the part is in range everywhere, so no read needs a mask."""
    sizes, dtype = lowering.output_sizes, lowering.output_dtype
    axis = dim % len(sizes)
    position = position_in(index, sizes[axis])

    def value(place: Index) -> Expr:
        rest = (*place[:axis], *place[axis + 1 :])
        own = convert(part.at(broadcast_index(part.sizes, rest)), part.dtype, dtype)
        return where(apply("eq", integer(place[axis]), integer(position)), own, base(place))

    return lowering.map(sizes, dtype, value)


@rule("aten.select_scatter.default")
def select_scatter(lowering: Lowering, self: Tensor, src: Tensor, dim: int, index: Any) -> Tensor:
    """``self`` with one position of a dimension replaced."""
    return _replaced_position(lowering, src, self.at, dim, index)


@rule("aten.select_backward.default")
def select_backward(
    lowering: Lowering, grad_output: Tensor, input_sizes: Sequence[Any], dim: int, index: Any
) -> Tensor:
    """Zeros with one position of a dimension replaced."""
    return _replaced_position(lowering, grad_output, _zeros(grad_output.dtype), dim, index)


def _replaced_diagonal(
    lowering: Lowering, part: Tensor, base: ValueFunction, offset: int, dim1: int, dim2: int
) -> Tensor:
    rank = len(lowering.output_sizes)
    first, second = dim1 % rank, dim2 % rank
    if part.sizes[-1] == 0:
        return lowering.map(lowering.output_sizes, lowering.output_dtype, base)

    def inside(index: Index) -> tuple[Index, list[Expr]]:
        rest = (place for axis, place in enumerate(index) if axis not in (first, second))
        along = index[first] if offset >= 0 else index[second]
        on_diagonal = apply("eq", integer(sympy.expand(index[second] - index[first] - offset)), integer(0))
        return (*rest, along), [on_diagonal]

    return _replaced(lowering, part, base, inside)


@rule("aten.diagonal_scatter.default")
def diagonal_scatter(lowering: Lowering, self: Tensor, src: Tensor, offset: int, dim1: int, dim2: int) -> Tensor:
    """``self`` with a diagonal replaced."""
    return _replaced_diagonal(lowering, src, self.at, offset, dim1, dim2)


@rule("aten.diagonal_backward.default")
def diagonal_backward(
    lowering: Lowering, grad_output: Tensor, input_sizes: Sequence[Any], offset: int, dim1: int, dim2: int
) -> Tensor:
    """Zeros with a diagonal replaced."""
    return _replaced_diagonal(lowering, grad_output, _zeros(grad_output.dtype), offset, dim1, dim2)


@rule("aten.diag_embed.default")
def diag_embed(lowering: Lowering, self: Tensor, offset: int, dim1: int, dim2: int) -> Tensor:
    """Zeros with a diagonal of two new dimensions replaced."""
    return _replaced_diagonal(lowering, self, _zeros(self.dtype), offset, dim1, dim2)
