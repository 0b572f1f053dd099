"""Reading and writing at places that are only known, or only sometimes in range, at run time.

Place: below the rules of the index family, padding and windows.
Input: tensors of ``lower.tensor``. Output: loads with bound run-time indices or masks.
Invariants: no load or store is ever out of range. A kernel cannot raise, so an index for which eager raises is clamped
into range instead, never memory that is not ours, and is ``corrected``: targets that can tell of it do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import index_symbol, substitute
from mixbackend.backends.codegen.ir.scalar import Bindings, Constant, Expr, IndexValue, Load, apply, needed
from mixbackend.backends.codegen.ir.stages import Map
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.contracts.verdict import RefusalCode

INDEX_DTYPES = (torch.int64, torch.int32)


def addressable(lowering: Lowering, tensor: Tensor) -> Tensor:
    """The tensor with every element a plain load, to which a mask and bindings can be added: itself, or a copy.

    To be called before the stage that reads it is made.
    """
    probe = tensor.at(tuple(index_symbol(f"p{place}") for place in range(tensor.rank)))
    if isinstance(probe, Load) and probe.mask is None and not probe.bindings:
        return tensor
    return lowering.map(tensor.sizes, tensor.dtype, tensor.at)


def load(
    tensor: Tensor,
    index: Sequence[Any],
    bindings: Bindings = (),
    mask: Expr | None = None,
    other: int | float | bool = 0,
) -> Expr:
    """An element of an addressable tensor.

    Args:
        index: in range wherever the mask is true.
        bindings: meaning of symbols in the index; those that it does not need are left out.
        mask: where to read; ``None`` is everywhere.
        other: value elsewhere.
    """
    element = tensor.at(tuple(map(sympy.sympify, index)))
    assert isinstance(element, Load), "a masked or bound read needs an addressable tensor"
    return replace(element, bindings=needed(bindings, element.index), mask=mask, other=other)


def read_through(lowering: Lowering, stage: Map, element: Load, source: Load) -> Load:
    """What a stage reads to make an element of its target.

    Args:
        element: of the target.
        source: what the stage reads, in terms of its loops.
    """
    places = {loop.index: part for loop, part in zip(stage.loops, element.index, strict=True)}
    return replace(source, index=tuple(substitute(part, places, lowering.ranges) for part in source.index))


def integer(value: Any) -> Expr:
    """An index expression as an int64 value."""
    expression = sympy.sympify(value)
    if expression.is_Integer:
        return Constant(torch.int64, int(expression))
    return IndexValue(torch.int64, expression)


def run_time_index(
    lowering: Lowering, value: Expr, size: Any, wrap: bool, checked: bool = True, wanted: Expr | None = None
) -> tuple[sympy.Symbol, Bindings]:
    """A symbol for an index that is computed at run time, and its binding.

    Args:
        value: of an integer type.
        size: of the dimension it indexes.
        wrap: whether eager counts negative indices from the end. Whatever is out of range then (eager raises) is
            clamped.
        checked: whether it comes from outside, so that it may be out of range.
        wanted: where eager looks at it; ``None`` is everywhere.

    Raises:
        RefusedError: the dimension may be empty, so that no index is in range.
    """
    size = sympy.sympify(size)
    if not size.is_positive:
        code: RefusalCode = "declined" if size == 0 else "dynamic-shape"
        raise RefusedError(code, f"an indexed dimension of size {size} is or may be empty: no index is in range")
    value, zero = lowering.cast(value, torch.int64), integer(0)
    if wrap:
        value = apply("where", value < zero, value + integer(size), value)
    inside = apply("maximum", apply("minimum", value, integer(size - 1)), zero)
    symbol = lowering.bound_symbol(size)
    return symbol, ((symbol, corrected(inside, value, wanted) if checked else inside),)


def corrected(value: Expr, given: Expr, wanted: Expr | None = None) -> Expr:
    """What is computed with instead of a value from outside, for which eager raises where the two differ.

    Args:
        wanted: where eager looks at it; ``None`` is everywhere.
    """
    return apply("corrected", value, given if wanted is None else apply("where", wanted, given, value))


def check_index(index: Tensor) -> None:
    """Refuse what is no integer index.

    Raises:
        RefusedError: masks, with results that depend on values, and other types.
    """
    if index.dtype in (torch.bool, torch.uint8):
        raise RefusedError("data-dependent", "indexing with a mask gives a size that depends on its values")
    if index.dtype not in INDEX_DTYPES:
        raise RefusedError("dtype", f"an index of type {index.dtype}; int64 and int32 are taken")


def names_nothing(tensor: Tensor, index: Tensor) -> bool:
    """Whether an index with a position per element has none: only then eager lets its rank be another one."""
    same = at_least_one_dimension(tensor).rank == at_least_one_dimension(index).rank
    return not same or any(map(is_zero, index.sizes))


def conditions_inside(position: Any, size: Any, least: Any, most: Any) -> tuple[Expr, ...]:
    """What must hold for ``0 <= position < size``, given bounds of the position that are known when compiling.

    Args:
        least, most: smallest and largest value the position takes, as expressions over sizes.
    """
    conditions = []
    if not sympy.sympify(least).is_nonnegative:
        conditions.append(integer(position) >= integer(0))
    if not sympy.expand(sympy.sympify(size) - most).is_positive:
        conditions.append(integer(position) < integer(size))
    return tuple(conditions)


def added(values: Sequence[Expr]) -> Expr:
    """Sum of values, from left to right."""
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result


def is_zero(size: Any) -> bool:
    """Whether a size is known to be zero."""
    return bool(sympy.sympify(size) == 0)


def at_least_one_dimension(tensor: Tensor) -> Tensor:
    """A scalar as a tensor of one element, as the index family takes it; anything else as it is."""
    if tensor.rank > 0:
        return tensor
    return Tensor((sympy.Integer(1),), tensor.dtype, lambda index: tensor.at(()))


def normalized(dimension: int, rank: int) -> int:
    """A dimension counted from the front; a scalar counts as one dimension."""
    return dimension % max(rank, 1)


def replaced(index: Index, place: int, value: Any) -> Index:
    """An index with one position replaced."""
    return (*index[:place], sympy.sympify(value), *index[place + 1 :])
