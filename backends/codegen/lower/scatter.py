"""Rules that write to places known at run time: ``scatter``, ``index_add`` and their relatives.

Place: registered by ``lower.table``; ``index_put`` is with the other multi-dimensional indexing.
Semantics: updates are made in row-major order, so that of several writers to one place the last wins, as eager does on
one thread. Indices out of range, for which eager raises, are clamped into range (see ``lower.access``). Sums and
products of 16-bit floating types are accumulated in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Bindings, Constant, Expr, apply, compute_dtype
from mixbackend.backends.codegen.ir.stages import WriteMode
from mixbackend.backends.codegen.lower.access import (
    at_least_one_dimension,
    check_index,
    names_nothing,
    normalized,
    replaced,
    run_time_index,
)
from mixbackend.backends.codegen.lower.conversion import written_into
from mixbackend.backends.codegen.lower.lowering import Lowering, ValueFunction
from mixbackend.backends.codegen.lower.promotion import constant, rounded_constant
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

Destination = Callable[[Index], tuple[Index, Bindings]]

_MODES: dict[str, WriteMode] = {
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


def scattered(
    lowering: Lowering,
    sizes: Sequence[Any],
    dtype: torch.dtype,
    base: ValueFunction,
    updates: Sequence[Any],
    destination: Destination,
    value: ValueFunction,
    mode: WriteMode = "set",
    mask: ValueFunction | None = None,
) -> Tensor:
    """``Lowering.scatter``, with 16-bit sums and products rounded only at the end.

    Raises:
        RefusedError: arithmetic on bool.
    """
    _check_arithmetic(dtype, mode)
    wide = compute_dtype(dtype) if mode in ("add", "mul") else dtype
    return lowering.in_type(lowering.scatter(sizes, wide, base, updates, destination, value, mode, mask), dtype)


def _check_arithmetic(dtype: torch.dtype, mode: WriteMode) -> None:
    if dtype == torch.bool and mode != "set":
        raise RefusedError("dtype", f"updates of mode {mode} on bool")


def identity(mode: WriteMode, dtype: torch.dtype) -> Constant:
    """What changes nothing when it is combined with a value."""
    if mode in ("max", "min") and not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return Constant(dtype, limits.min if mode == "max" else limits.max)
    number = {"add": 0, "mul": 1, "max": -float("inf"), "min": float("inf")}[mode]
    return Constant(dtype, float(number) if dtype.is_floating_point else int(number))


# -- one index per update -------------------------------------------------------------------------------------------


def _along(lowering: Lowering, target: Tensor, dim: int, index: Tensor) -> Destination:
    """Where ``scatter`` writes: the update's own place, with the index instead of its position along ``dim``."""
    check_index(index)

    def destination(place: Index) -> tuple[Index, Bindings]:
        symbol, bindings = run_time_index(lowering, index.at(place), target.sizes[dim], wrap=False)
        return replaced(place, dim, symbol), bindings

    return destination


def _scatter(
    lowering: Lowering, target: Tensor, dim: int, index: Tensor, value: ValueFunction, mode: WriteMode
) -> Tensor:
    if names_nothing(target, index):
        return lowering.map(target.sizes, target.dtype, target.at)
    target, index = at_least_one_dimension(target), at_least_one_dimension(index)
    destination = _along(lowering, target, normalized(dim, target.rank), index)
    result = scattered(lowering, target.sizes, target.dtype, target.at, index.sizes, destination, value, mode)
    return _as_declared(lowering, result)


def _as_declared(lowering: Lowering, result: Tensor) -> Tensor:
    """The result with the rank that torch says it has: a scalar was computed as one element."""
    if len(lowering.output_sizes) == result.rank:
        return result
    return lowering.lazy((), result.dtype, lambda index: result.at((sympy.Integer(0),)))


def _source(lowering: Lowering, target: Tensor, source: Tensor) -> ValueFunction:
    if source.dtype != target.dtype:
        raise RefusedError("dtype", f"updates of type {source.dtype} for a tensor of {target.dtype}")
    return at_least_one_dimension(source).at


def _number(target: Tensor, value: Any) -> ValueFunction:
    """A number as the updates, in the tensor's type."""
    number = rounded_constant(value, target.dtype)
    return lambda index: number


@rule("aten.scatter.src", "aten.scatter_add.default")
def scatter_source(lowering: Lowering, self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """``out[index[i][j]][j] = src[i][j]`` along a dimension, or added to what is there."""
    assert lowering.view is not None
    mode: WriteMode = "add" if lowering.view.op == "aten.scatter_add.default" else "set"
    return _scatter(lowering, self, dim, index, _source(lowering, self, src), mode)


@rule("aten.scatter.value")
def scatter_value(lowering: Lowering, self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """One number to all places of the index."""
    return _scatter(lowering, self, dim, index, _number(self, value), "set")


@rule("aten.scatter.reduce")
def scatter_with_reduction(
    lowering: Lowering, self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str
) -> Tensor:
    """``scatter`` that adds or multiplies."""
    return _scatter(lowering, self, dim, index, _source(lowering, self, src), _MODES[reduce])


@rule("aten.scatter.value_reduce")
def scatter_value_with_reduction(
    lowering: Lowering, self: Tensor, dim: int, index: Tensor, value: Any, reduce: str
) -> Tensor:
    """``scatter`` of a number that adds or multiplies."""
    return _scatter(lowering, self, dim, index, _number(self, value), _MODES[reduce])


# -- reductions that may leave the old value out --------------------------------------------------------------------


@rule("aten.scatter_reduce.two")
def scatter_reduce(
    lowering: Lowering, self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """``scatter`` that folds; without ``include_self`` the old value counts only where nothing is written."""
    if names_nothing(self, index):
        return lowering.map(self.sizes, self.dtype, self.at)
    target, index = at_least_one_dimension(self), at_least_one_dimension(index)
    destination = _along(lowering, target, normalized(dim, target.rank), index)
    source = _source(lowering, target, src)
    return _as_declared(lowering, _reduced(lowering, target, index.sizes, destination, source, reduce, include_self))


@rule("aten.index_reduce.default")
def index_reduce(
    lowering: Lowering, self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """``index_add`` for other folds."""
    target, updates, destination = _slices(lowering, self, dim, index, source)
    value = _source(lowering, target, updates)
    return _as_declared(lowering, _reduced(lowering, target, updates.sizes, destination, value, reduce, include_self))


def _reduced(
    lowering: Lowering,
    target: Tensor,
    updates: Index,
    destination: Destination,
    value: ValueFunction,
    reduce: str,
    include_self: bool,
) -> Tensor:
    mode, dtype = _MODES[reduce], target.dtype
    _check_arithmetic(dtype, mode)
    if reduce == "mean":
        return _mean(lowering, target, updates, destination, value, include_self)
    base = target.at
    if not include_self:
        neutral = identity(mode, target.compute)
        written = _written(lowering, target, updates, destination)
        base = lambda index: apply("where", written.at(index), neutral, target.at(index))  # noqa: E731
    return scattered(lowering, target.sizes, dtype, base, updates, destination, value, mode)


def _written(lowering: Lowering, target: Tensor, updates: Index, destination: Destination) -> Tensor:
    """Which places get an update."""
    no, yes = Constant(torch.bool, False), Constant(torch.bool, True)
    return lowering.scatter(target.sizes, torch.bool, lambda _: no, updates, destination, lambda _: yes)


def _mean(
    lowering: Lowering,
    target: Tensor,
    updates: Index,
    destination: Destination,
    value: ValueFunction,
    include_self: bool,
) -> Tensor:
    """Sum and number of what comes to every place; integers are divided with rounding to negative infinity."""
    compute, sizes = target.compute, target.sizes
    zero, one = Constant(torch.int64, 0), Constant(torch.int64, 1)
    start = one if include_self else zero
    count = lowering.scatter(sizes, torch.int64, lambda _: start, updates, destination, lambda _: one, "add")

    def base(index: Index) -> Expr:
        if include_self:
            return target.at(index)
        return apply("where", count.at(index) > zero, identity("add", compute), target.at(index))

    total = lowering.scatter(sizes, compute, base, updates, destination, value, "add")

    def quotient(index: Index) -> Expr:
        divisor = lowering.cast(apply("maximum", count.at(index), one), compute)
        return apply("div" if compute.is_floating_point else "floor_div", total.at(index), divisor)

    return lowering.map(sizes, target.dtype, quotient)


# -- one index per slice --------------------------------------------------------------------------------------------


def _slices(
    lowering: Lowering, target: Tensor, dim: int, index: Tensor, source: Tensor
) -> tuple[Tensor, Tensor, Destination]:
    """Target and updates with at least one dimension, and where ``index_add`` writes a slice of the updates."""
    check_index(index)
    target, source, index = map(at_least_one_dimension, (target, source, index))
    place = normalized(dim, target.rank)

    def destination(position: Index) -> tuple[Index, Bindings]:
        symbol, bindings = run_time_index(lowering, index.at((position[place],)), target.sizes[place], wrap=False)
        return replaced(position, place, symbol), bindings

    return target, source, destination


@rule("aten.index_add.default")
def index_add(lowering: Lowering, self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    """Slices of ``source``, times ``alpha``, added to the slices that the index names."""
    target, updates, destination = _slices(lowering, self, dim, index, source)
    value = _source(lowering, target, updates)
    factor = constant(alpha, target.dtype)

    def scaled(position: Index) -> Expr:
        return value(position) if alpha == 1 else value(position) * factor

    result = scattered(lowering, target.sizes, target.dtype, target.at, updates.sizes, destination, scaled, "add")
    return _as_declared(lowering, result)


@rule("aten.index_copy.default")
def index_copy(lowering: Lowering, self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Slices of ``source`` instead of the slices that the index names."""
    target, updates, destination = _slices(lowering, self, dim, index, source)
    value = _source(lowering, target, updates)
    result = scattered(lowering, target.sizes, target.dtype, target.at, updates.sizes, destination, value)
    return _as_declared(lowering, result)


@rule("aten.index_copy_.default")
def index_copy_into(lowering: Lowering, self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """The same in the memory of ``self``."""
    return written_into(lowering, self, lambda: index_copy(lowering, self, dim, index, source))


@rule("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(lowering: Lowering, self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """One value in all slices that the index names; negative indices count from the end."""
    check_index(index)
    target, index = at_least_one_dimension(self), at_least_one_dimension(index)
    place = normalized(dim, target.rank)
    fill = (
        (lambda _: lowering.cast(value.at(()), target.compute)) if isinstance(value, Tensor) else _number(target, value)
    )

    def destination(position: Index) -> tuple[Index, Bindings]:
        symbol, bindings = run_time_index(lowering, index.at((position[place],)), target.sizes[place], wrap=True)
        return replaced(position, place, symbol), bindings

    updates = replaced(target.sizes, place, index.sizes[0])
    return _as_declared(
        lowering, scattered(lowering, target.sizes, target.dtype, target.at, updates, destination, fill)
    )
