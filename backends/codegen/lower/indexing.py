"""Rules that read at places known at run time: ``index``, ``gather``, ``take``; and ``index_put``, their inverse.

Place: registered by ``lower.table``.
Semantics: where eager counts negative indices from the end, so do these. Indices out of range, for which eager raises,
are clamped into range (see ``lower.access``). Of several writers to one place the last in row-major order wins.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import unflatten
from mixbackend.backends.codegen.ir.scalar import Bindings, Expr, apply
from mixbackend.backends.codegen.lower.access import (
    addressable,
    at_least_one_dimension,
    check_index,
    integer,
    load,
    names_nothing,
    normalized,
    replaced,
    run_time_index,
)
from mixbackend.backends.codegen.lower.broadcast import broadcast_index, broadcast_sizes
from mixbackend.backends.codegen.lower.conversion import written_into
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import constant, convert
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.scatter import scattered
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.view import reshape

MASKS = (torch.bool, torch.uint8)


@dataclass(frozen=True)
class _Indexing:
    """``tensor[indices]``: which element of the tensor each element of the result is.

    Attributes:
        tensor: what is indexed.
        indices: one entry per dimension, ``None`` where all of it is taken.
        shared: sizes that all index tensors broadcast to.
        start: dimension of the result where they stand: with the first index tensor if the tensors are neighbours,
            otherwise in front.
    """

    tensor: Tensor
    indices: tuple[Tensor | None, ...]
    shared: Index
    start: int

    @property
    def sizes(self) -> Index:
        """Sizes of the result."""
        kept = [size for size, index in zip(self.tensor.sizes, self.indices, strict=True) if index is None]
        return (*kept[: self.start], *self.shared, *kept[self.start :])

    def place(self, lowering: Lowering, index: Index) -> tuple[Index, Bindings]:
        """Index of the tensor for an index of the result."""
        end = self.start + len(self.shared)
        shared, kept = index[self.start : end], iter((*index[: self.start], *index[end:]))
        place: list[sympy.Expr] = []
        bindings: Bindings = ()
        for size, positions in zip(self.tensor.sizes, self.indices, strict=True):
            if positions is None:
                place.append(next(kept))
                continue
            value = positions.at(broadcast_index(positions.sizes, shared))
            symbol, binding = run_time_index(lowering, value, size, wrap=True)
            place.append(symbol)
            bindings = (*bindings, *binding)
        return tuple(place), bindings


def _indexing(tensor: Tensor, indices: Sequence[Tensor | None]) -> _Indexing:
    for index in indices:
        if index is not None:
            check_index(index)
    entries = (*indices, *(None,) * (tensor.rank - len(indices)))
    where = [place for place, index in enumerate(entries) if index is not None]
    are_neighbours = all(right - left == 1 for left, right in itertools.pairwise(where))
    shared = broadcast_sizes(*(index.sizes for index in entries if index is not None))
    return _Indexing(tensor, entries, shared, where[0] if where and are_neighbours else 0)


@rule("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index_tensor(lowering: Lowering, self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """``self[indices]``; masks are refused."""
    indexing = _indexing(addressable(lowering, self), indices)
    return lowering.map(
        indexing.sizes, self.dtype, lambda index: load(indexing.tensor, *indexing.place(lowering, index))
    )


@rule("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    lowering: Lowering, self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """``self[indices] = values``, or added with ``accumulate``."""
    if any(index is not None and index.dtype in MASKS for index in indices):
        return _put_where(lowering, self, indices, values, accumulate)
    indexing = _indexing(self, indices)
    return scattered(
        lowering,
        self.sizes,
        self.dtype,
        self.at,
        indexing.sizes,
        lambda index: indexing.place(lowering, index),
        lambda index: convert(values.at(broadcast_index(values.sizes, index)), values.dtype, self.dtype),
        "add" if accumulate else "set",
    )


@rule("aten.index_put_.default")
def index_put_into(
    lowering: Lowering, self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """The same in the memory of ``self``."""
    return written_into(lowering, self, lambda: index_put(lowering, self, indices, values, accumulate))


def _put_where(
    lowering: Lowering, tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Tensor:
    """``self[mask] = values`` where all chosen places get the same values: no position among them is needed.

    Raises:
        RefusedError: every chosen place has a value of its own, or there are other indices beside the mask.
    """
    masks = [place for place, index in enumerate(indices) if index is not None]
    mask = indices[masks[0]]
    if len(masks) > 1 or mask is None or mask.dtype != torch.bool:
        raise RefusedError("data-dependent", "a mask beside other indices, or a mask of type uint8")
    start = masks[0]
    end = start + mask.rank
    after = tensor.rank - end
    if values.rank > after and values.sizes[values.rank - after - 1] != 1:
        raise RefusedError("data-dependent", "values for the places of a mask depend on how many there are")

    def value(index: Index) -> Expr:
        places = (*index[:start], sympy.Integer(0), *index[end:])
        new = convert(values.at(broadcast_index(values.sizes, places)), values.dtype, tensor.dtype)
        old = tensor.at(index)
        new = old + new if accumulate else new
        return apply("where", mask.at(index[start:end]), new, old)

    if accumulate and tensor.dtype == torch.bool:
        raise RefusedError("dtype", "adding bool values")
    return lowering.map(tensor.sizes, tensor.dtype, value)


@rule("aten.index_select.default")
def index_select(lowering: Lowering, self: Tensor, dim: int, index: Tensor) -> Tensor:
    """Slices of a dimension, by one list of positions."""
    check_index(index)
    tensor, positions = addressable(lowering, at_least_one_dimension(self)), at_least_one_dimension(index)
    axis = normalized(dim, tensor.rank)

    def value(place: Index) -> Expr:
        place = place or (sympy.Integer(0),)
        symbol, bindings = run_time_index(lowering, positions.at((place[axis],)), tensor.sizes[axis], wrap=False)
        return load(tensor, replaced(place, axis, symbol), bindings)

    return lowering.map(lowering.output_sizes, self.dtype, value)


@rule("aten.gather.default")
def gather(lowering: Lowering, self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """``out[i][j] = self[index[i][j]][j]`` along a dimension."""
    check_index(index)
    if names_nothing(self, index):
        return lowering.lazy(index.sizes, self.dtype, lambda place: constant(0, self.dtype))
    tensor, positions = addressable(lowering, at_least_one_dimension(self)), at_least_one_dimension(index)
    axis = normalized(dim, tensor.rank)

    def value(place: Index) -> Expr:
        place = place or (sympy.Integer(0),)
        symbol, bindings = run_time_index(lowering, positions.at(place), tensor.sizes[axis], wrap=False)
        return load(tensor, replaced(place, axis, symbol), bindings)

    return lowering.map(index.sizes, self.dtype, value)


@rule("aten.take.default")
def take(lowering: Lowering, self: Tensor, index: Tensor) -> Tensor:
    """Elements by their row-major position."""
    check_index(index)
    flat = addressable(lowering, _flat(lowering, self))

    def value(place: Index) -> Expr:
        symbol, bindings = run_time_index(lowering, index.at(place), flat.sizes[0], wrap=True)
        return load(flat, (symbol,), bindings)

    return lowering.map(index.sizes, self.dtype, value)


@rule("aten.put.default")
def put(lowering: Lowering, self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Elements written, or added, at row-major positions."""
    check_index(index)
    if source.dtype != self.dtype:
        raise RefusedError("dtype", f"values of type {source.dtype} for a tensor of {self.dtype}")
    positions, values = _flat(lowering, index), _flat(lowering, source)
    count = sympy.prod(self.sizes)

    def destination(place: Index) -> tuple[Index, Bindings]:
        symbol, bindings = run_time_index(lowering, positions.at(place), count, wrap=True)
        return unflatten(symbol, self.sizes, lowering.ranges), bindings

    mode: Any = "add" if accumulate else "set"
    return scattered(lowering, self.sizes, self.dtype, self.at, positions.sizes, destination, values.at, mode)


@rule("aten.masked_scatter.default")
def masked_scatter(lowering: Lowering, self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Places of a mask filled, in order, with the elements of ``source``; for those that it lacks eager raises."""
    sizes = lowering.output_sizes
    if mask.dtype != torch.bool or source.dtype != self.dtype:
        raise RefusedError("dtype", f"a mask of type {mask.dtype}, a source of {source.dtype} for {self.dtype}")
    whole = Tensor(sizes, torch.bool, lambda index: mask.at(broadcast_index(mask.sizes, index)))
    chosen = _flat(lowering, whole)
    count = lowering.scan(
        "sum", chosen.sizes, 0, lambda place: lowering.cast(chosen.at(place), torch.int64), torch.int64
    )
    flat, order = addressable(lowering, _flat(lowering, source)), reshape(lowering, count, sizes)
    if flat.sizes[0] == 0:
        raise RefusedError("argument", "an empty source")

    def value(index: Index) -> Expr:
        position = order.at(index) - integer(1)
        condition = whole.at(index)
        symbol, bindings = run_time_index(lowering, position, flat.sizes[0], wrap=False, wanted=condition)
        new = load(flat, (symbol,), bindings)
        return apply("where", condition, new, self.at(broadcast_index(self.sizes, index)))

    return lowering.map(sizes, self.dtype, value)


def _flat(lowering: Lowering, tensor: Tensor) -> Tensor:
    """A tensor of one dimension with the same elements in row-major order."""
    return reshape(lowering, at_least_one_dimension(tensor), (sympy.prod(tensor.sizes),))
