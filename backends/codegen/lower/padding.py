"""Rules of padding: with a constant, by reflection, by repeating the border; and their gradients.

Place: registered by ``lower.table``.
Semantics: constant padding is one load under a mask; reflected and repeated borders are index arithmetic with ``Min``
and ``Max``. Negative amounts crop.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import sympy

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, all_of, apply
from mixbackend.backends.codegen.lower.access import added, addressable, conditions_inside, integer, load
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import rounded_constant
from mixbackend.backends.codegen.lower.rules import rule
from mixbackend.backends.codegen.lower.scatter import scattered
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

_REFLECTION = tuple(f"aten.reflection_pad{rank}d" for rank in (1, 2, 3))
_REPLICATION = tuple(f"aten.replication_pad{rank}d" for rank in (1, 2, 3))


def _before(padding: Sequence[Any], rank: int) -> Index:
    """Amount in front of every dimension; torch lists pairs from the last dimension on."""
    pairs = [sympy.sympify(amount) for amount in padding[::2]]
    return (*(sympy.Integer(0),) * (rank - len(pairs)), *reversed(pairs))


@rule("aten.constant_pad_nd.default")
def constant_pad_nd(lowering: Lowering, self: Tensor, pad: Sequence[Any], value: Any = 0) -> Tensor:
    """A frame of one value around a tensor."""
    return framed(lowering, self, _before(pad, self.rank), lowering.output_sizes, rounded_constant(value, self.dtype))


def framed(lowering: Lowering, tensor: Tensor, front: Index, sizes: Sequence[Any], fill: Expr) -> Tensor:
    """A tensor of other sizes with this one inside.

    Args:
        front: amount in front of every dimension.
        fill: everywhere else.
    """
    source = addressable(lowering, tensor)

    def padded(index: Index) -> Expr:
        place = tuple(position - amount for position, amount in zip(index, front, strict=True))
        conditions = itertools.chain.from_iterable(
            conditions_inside(position, size, -amount, total - 1 - amount)
            for position, size, amount, total in zip(place, source.sizes, front, sizes, strict=True)
        )
        mask = all_of(conditions)
        if mask is None:
            return source.at(place)
        if isinstance(fill, Constant):
            return load(source, place, mask=mask, other=fill.value)
        return apply("where", mask, load(source, place, mask=mask), fill)

    return lowering.map(sizes, tensor.dtype, padded)


# -- reflection -----------------------------------------------------------------------------------------------------


def _reflected(position: sympy.Expr, size: sympy.Expr) -> sympy.Expr:
    """A position outside, mirrored at the first or last element, which are not repeated."""
    from_first = sympy.Max(position, -position)
    return sympy.Min(from_first, 2 * (size - 1) - from_first)


@rule(*(f"{name}.default" for name in _REFLECTION))
def reflection_pad(lowering: Lowering, self: Tensor, padding: Sequence[Any]) -> Tensor:
    """A frame that mirrors the tensor."""
    spatial = len(padding) // 2
    front = _before(padding, self.rank)

    def mirrored(index: Index) -> Expr:
        place = [position - amount for position, amount in zip(index, front, strict=True)]
        for axis in range(self.rank - spatial, self.rank):
            place[axis] = _reflected(place[axis], self.sizes[axis])
        return self.at(tuple(place))

    return lowering.map(lowering.output_sizes, self.dtype, mirrored)


@rule(*(f"{name}_backward.default" for name in _REFLECTION))
def reflection_pad_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, padding: Sequence[Any]) -> Tensor:
    """Every element gathers from its own place and, per dimension, from its two mirror images in the frame."""
    spatial = len(padding) // 2
    front = _before(padding, self.rank)
    gradient = addressable(lowering, grad_output)

    def gathered(index: Index) -> Expr:
        images: list[list[tuple[sympy.Expr, tuple[Expr, ...]]]] = [
            _images(position, self.sizes[axis], front[axis], gradient.sizes[axis])
            if axis >= self.rank - spatial
            else [(position, ())]
            for axis, position in enumerate(index)
        ]
        terms = []
        for choice in itertools.product(*images):
            conditions = itertools.chain.from_iterable(needed for _, needed in choice)
            terms.append(load(gradient, [place for place, _ in choice], mask=all_of(conditions)))
        return added(terms)

    return lowering.map(self.sizes, grad_output.dtype, gathered)


def _images(
    position: sympy.Expr, size: sympy.Expr, front: sympy.Expr, total: sympy.Expr
) -> list[tuple[sympy.Expr, tuple[Expr, ...]]]:
    """Places of the padded dimension that show an element, with what must hold for each to be there.

    The first and last element are their own images; they are counted once.
    """
    last = size - 1
    own, left, right = position + front, front - position, front + 2 * last - position
    return [
        (own, conditions_inside(own, total, front, last + front)),
        (left, (*_at_least(position, 1), *conditions_inside(left, total, front - last, front))),
        (right, (*_at_least(last - position, 1), *conditions_inside(right, total, front + last, front + 2 * last))),
    ]


def _at_least(value: sympy.Expr, bound: int) -> tuple[Expr, ...]:
    return (integer(value) >= integer(bound),)


# -- repeated borders -----------------------------------------------------------------------------------------------


def _clamped(position: sympy.Expr, size: sympy.Expr) -> sympy.Expr:
    return sympy.Min(sympy.Max(position, 0), size - 1)


def _replicated(index: Index, sizes: Index, front: Index, spatial: int) -> Index:
    """Where an element of the padded tensor comes from."""
    place = [position - amount for position, amount in zip(index, front, strict=True)]
    for axis in range(len(sizes) - spatial, len(sizes)):
        place[axis] = _clamped(place[axis], sizes[axis])
    return tuple(place)


@rule(*(f"{name}.default" for name in _REPLICATION))
def replication_pad(lowering: Lowering, self: Tensor, padding: Sequence[Any]) -> Tensor:
    """A frame that repeats the border."""
    front = _before(padding, self.rank)
    spatial = len(padding) // 2
    return lowering.map(
        lowering.output_sizes,
        self.dtype,
        lambda index: self.at(_replicated(index, self.sizes, front, spatial)),
    )


@rule(*(f"{name}_backward.default" for name in _REPLICATION))
def replication_pad_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, padding: Sequence[Any]) -> Tensor:
    """Gradients added up where their elements came from."""
    front = _before(padding, self.rank)
    spatial = len(padding) // 2
    dtype = grad_output.dtype
    return scattered(
        lowering,
        self.sizes,
        dtype,
        lambda index: Constant(grad_output.compute, 0.0),
        grad_output.sizes,
        lambda index: (_replicated(index, self.sizes, front, spatial), ()),
        grad_output.at,
        "add",
    )
