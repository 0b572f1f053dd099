"""Views: a tensor with another tensor's index, transformed.

Place: used by view rules and by every rule that reads its operands in another shape.
Invariants: nothing is computed; ``Tensor.strided`` stays exact where the result is a strided view of a region input and
is dropped where it is not. Reading from an empty tensor never happens, so its values are a constant.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import flatten, unflatten
from mixbackend.backends.codegen.ir.scalar import Constant
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.tensor import Index, StridedView, Tensor

_ZERO, _ONE = sympy.Integer(0), sympy.Integer(1)


def permute(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """Dimensions in another order: dimension ``order[k]`` becomes the ``k``-th."""
    order = [axis % tensor.rank for axis in order]
    place = {axis: position for position, axis in enumerate(order)}
    strided = _restrided(tensor, lambda view: tuple(view.strides[axis] for axis in order))
    return Tensor(
        tuple(tensor.sizes[axis] for axis in order),
        tensor.dtype,
        lambda index: tensor.at(tuple(index[place[axis]] for axis in range(tensor.rank))),
        strided,
    )


def transpose(tensor: Tensor, first: int, second: int) -> Tensor:
    """Two dimensions exchanged."""
    if tensor.rank == 0:
        return tensor
    order = list(range(tensor.rank))
    order[first], order[second] = order[second], order[first]
    return permute(tensor, order)


def expand(tensor: Tensor, sizes: Sequence[Any]) -> Tensor:
    """Broadcast to sizes, which are all given (no ``-1``)."""
    wanted: Index = tuple(map(sympy.sympify, sizes))
    fresh = len(wanted) - tensor.rank
    repeated = [size == 1 and target != 1 for size, target in zip(tensor.sizes, wanted[fresh:], strict=True)]

    def strides(view: StridedView) -> Index:
        own = (_ZERO if again else stride for again, stride in zip(repeated, view.strides, strict=True))
        return (*(_ZERO,) * fresh, *own)

    return Tensor(
        wanted,
        tensor.dtype,
        lambda index: tensor.at(
            tuple(_ZERO if again else place for again, place in zip(repeated, index[fresh:], strict=True))
        ),
        _restrided(tensor, strides),
    )


def unsqueeze(tensor: Tensor, axis: int) -> Tensor:
    """A new dimension of size 1."""
    axis %= tensor.rank + 1
    strided = _restrided(
        tensor, lambda view: (*view.strides[:axis], _inner_extent(tensor, view, axis), *view.strides[axis:])
    )
    return Tensor(
        (*tensor.sizes[:axis], _ONE, *tensor.sizes[axis:]),
        tensor.dtype,
        lambda index: tensor.at((*index[:axis], *index[axis + 1 :])),
        strided,
    )


def _inner_extent(tensor: Tensor, view: StridedView, axis: int) -> sympy.Expr:
    """Stride that torch gives a new dimension."""
    return view.strides[axis] * tensor.sizes[axis] if axis < tensor.rank else _ONE


def squeeze(tensor: Tensor, axes: Iterable[int]) -> Tensor:
    """Without those of the dimensions of size 1."""
    dropped = {axis % tensor.rank for axis in axes if tensor.rank}
    dropped = {axis for axis in dropped if tensor.sizes[axis] == 1}
    kept = [axis for axis in range(tensor.rank) if axis not in dropped]
    place = {axis: position for position, axis in enumerate(kept)}
    return Tensor(
        tuple(tensor.sizes[axis] for axis in kept),
        tensor.dtype,
        lambda index: tensor.at(tuple(index[place[axis]] if axis in place else _ZERO for axis in range(tensor.rank))),
        _restrided(tensor, lambda view: tuple(view.strides[axis] for axis in kept)),
    )


def select(tensor: Tensor, axis: int, position: Any) -> Tensor:
    """One position of a dimension, which goes away; the position is in range and not negative."""
    axis %= tensor.rank
    position = sympy.sympify(position)
    return Tensor(
        (*tensor.sizes[:axis], *tensor.sizes[axis + 1 :]),
        tensor.dtype,
        lambda index: tensor.at((*index[:axis], position, *index[axis:])),
        _restrided(
            tensor,
            lambda view: (*view.strides[:axis], *view.strides[axis + 1 :]),
            lambda view: view.strides[axis] * position,
        ),
    )


def slice_axis(tensor: Tensor, axis: int, start: Any, size: Any, step: Any = 1) -> Tensor:
    """``size`` positions of a dimension from ``start`` on, ``step`` apart; all of them in range."""
    axis %= tensor.rank
    start, size, step = sympy.sympify(start), sympy.sympify(size), sympy.sympify(step)
    return Tensor(
        (*tensor.sizes[:axis], size, *tensor.sizes[axis + 1 :]),
        tensor.dtype,
        lambda index: tensor.at((*index[:axis], start + index[axis] * step, *index[axis + 1 :])),
        _restrided(
            tensor,
            lambda view: (*view.strides[:axis], view.strides[axis] * step, *view.strides[axis + 1 :]),
            lambda view: view.strides[axis] * start,
        ),
    )


def diagonal(tensor: Tensor, first: int, second: int, offset: int, size: Any) -> Tensor:
    """Positions where the indices of two dimensions differ by ``offset``; the new dimension is the last."""
    first, second = first % tensor.rank, second % tensor.rank
    kept = [axis for axis in range(tensor.rank) if axis not in (first, second)]
    place = {axis: position for position, axis in enumerate(kept)}
    starts = {first: max(0, -offset), second: max(0, offset)}

    def at(index: Index) -> Any:
        return tensor.at(
            tuple(index[-1] + starts[axis] if axis in starts else index[place[axis]] for axis in range(tensor.rank))
        )

    strided = _restrided(
        tensor,
        lambda view: (*(view.strides[axis] for axis in kept), view.strides[first] + view.strides[second]),
        lambda view: view.strides[first] * starts[first] + view.strides[second] * starts[second],
    )
    return Tensor((*(tensor.sizes[axis] for axis in kept), sympy.sympify(size)), tensor.dtype, at, strided)


def unfold(tensor: Tensor, axis: int, size: int, step: int, windows: Any) -> Tensor:
    """Windows of ``size`` along a dimension, ``step`` apart; the place in the window is the last dimension."""
    axis %= tensor.rank
    strided = _restrided(
        tensor,
        lambda view: (
            *view.strides[:axis],
            view.strides[axis] * step,
            *view.strides[axis + 1 :],
            view.strides[axis],
        ),
    )
    return Tensor(
        (*tensor.sizes[:axis], sympy.sympify(windows), *tensor.sizes[axis + 1 :], sympy.sympify(size)),
        tensor.dtype,
        lambda index: tensor.at((*index[:axis], index[axis] * step + index[-1], *index[axis + 1 : -1])),
        strided,
    )


def alias(tensor: Tensor) -> Tensor:
    """The same values, in storage of their own: no longer a view of an input."""
    return Tensor(tensor.sizes, tensor.dtype, tensor.at)


def reshape(lowering: Lowering, tensor: Tensor, sizes: Sequence[Any]) -> Tensor:
    """The same elements in row-major order under other sizes, which are all given (no ``-1``).

    Dimensions are matched in groups of equal products, so that splitting a dimension keeps its index affine and
    merging dimensions divides only inside the group.
    """
    wanted: Index = tuple(map(sympy.sympify, sizes))
    if wanted == tensor.sizes:
        return tensor
    if any(size == 0 for size in wanted):
        return nothing(tensor, wanted)
    groups = _groups(tensor.sizes, wanted)

    def at(index: Index) -> Any:
        own: list[sympy.Expr] = [_ZERO] * tensor.rank
        for old, new in groups:
            parts = _unmerged(
                [index[axis] for axis in new],
                [wanted[axis] for axis in new],
                [tensor.sizes[axis] for axis in old],
                lowering,
            )
            for axis, part in zip(old, parts, strict=True):
                own[axis] = part
        return tensor.at(tuple(own))

    return Tensor(wanted, tensor.dtype, at, _reshaped_strides(tensor, wanted, groups))


def _unmerged(
    index: Sequence[sympy.Expr], sizes: Sequence[sympy.Expr], wanted: Sequence[sympy.Expr], lowering: Lowering
) -> tuple[sympy.Expr, ...]:
    """The index of one group under the group's other sizes."""
    if len(wanted) == 1 and len(index) == 1:
        return tuple(index)
    position = flatten(index, sizes)
    return unflatten(position, wanted, lowering.ranges)


def nothing(tensor: Tensor, sizes: Index) -> Tensor:
    """A tensor without elements, of which nothing is ever read."""
    value = Constant(tensor.compute, torch.zeros((), dtype=tensor.compute).item())
    strided = None
    if tensor.strided is not None:
        strided = StridedView(tensor.strided.input, contiguous_strides(sizes), tensor.strided.offset)
    return Tensor(sizes, tensor.dtype, lambda index: value, strided)


def contiguous_strides(sizes: Sequence[Any]) -> Index:
    """Strides of a row-major tensor; a size of 0 counts as 1, as in torch."""
    strides: list[sympy.Expr] = []
    step: sympy.Expr = _ONE
    for size in reversed(sizes):
        strides.append(step)
        step = step * (_ONE if size == 0 else size)
    return tuple(reversed(strides))


_Group = tuple[list[int], list[int]]


def _groups(old: Index, new: Index) -> list[_Group]:
    """Runs of dimensions, old and new, with equal numbers of elements; sizes of 1 are in none."""
    olds = [axis for axis, size in enumerate(old) if size != 1]
    news = [axis for axis, size in enumerate(new) if size != 1]
    groups: list[_Group] = []
    while olds and news:
        left, right = [olds.pop(0)], [news.pop(0)]
        ratio = _quotient(old[left[0]], new[right[0]])
        while ratio != 1 and (olds or news):
            grow_left = bool(olds) and (not news or _is_less_than_one(ratio))
            if grow_left:
                left.append(olds.pop(0))
                ratio = _quotient(ratio * old[left[-1]], _ONE)
            else:
                right.append(news.pop(0))
                ratio = _quotient(ratio, new[right[-1]])
        groups.append((left, right))
    if groups and (olds or news):
        groups[-1][0].extend(olds)
        groups[-1][1].extend(news)
    return groups


def _quotient(numerator: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
    ratio = numerator / divisor
    return ratio if ratio.is_Number else sympy.cancel(ratio)


def _is_less_than_one(ratio: sympy.Expr) -> bool:
    """Whether the old side has fewer elements so far; a guess for symbols, right or wrong the groups stay right."""
    numerator, denominator = sympy.fraction(ratio)
    return bool(
        numerator.subs(dict.fromkeys(numerator.free_symbols, 1009))
        < denominator.subs(dict.fromkeys(denominator.free_symbols, 1009))
    )


def _reshaped_strides(tensor: Tensor, wanted: Index, groups: Sequence[_Group]) -> StridedView | None:
    """Strides of a reshaped view of an input; ``None`` where memory order does not show one."""
    if tensor.strided is None:
        return None
    strides: list[sympy.Expr] = [_ONE] * len(wanted)
    for old, new in groups:
        for axis, inner in itertools.pairwise(old):
            jump = tensor.strided.strides[inner] * tensor.sizes[inner]
            if sympy.expand(tensor.strided.strides[axis] - jump) != 0:
                return None
        step = tensor.strided.strides[old[-1]]
        for axis in reversed(new):
            strides[axis] = step
            step = sympy.expand(step * wanted[axis])
    return StridedView(tensor.strided.input, tuple(strides), tensor.strided.offset)


def _restrided(tensor: Tensor, strides: Any, offset: Any = None) -> StridedView | None:
    """Where a view of a view of an input lies."""
    view = tensor.strided
    if view is None:
        return None
    start = view.offset if offset is None else sympy.expand(view.offset + offset(view))
    return StridedView(view.input, tuple(strides(view)), start)
