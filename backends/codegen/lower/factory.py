"""Rules of tensors made from numbers.

Place: registered by ``lower.table``.
Semantics: values are computed where they are read; a number is rounded to the tensor's type. Floating ranges are
computed in float64, as eager accumulates them.
"""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, call
from mixbackend.backends.codegen.lower.broadcast import read
from mixbackend.backends.codegen.lower.formula import equal, where
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import Number, Operand, constant, convert, rounded_constant
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor


def _filled(lowering: Lowering, value: Number) -> Tensor:
    dtype = lowering.output_dtype
    if isinstance(value, float) and not math.isfinite(value) and not dtype.is_floating_point:
        raise RefusedError("argument", f"{value} is no {dtype}")
    expression = rounded_constant(value, dtype)
    return lowering.lazy(lowering.output_sizes, dtype, lambda index: expression)


@rule("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def full(lowering: Lowering, fill_value: Number, **options: Any) -> Tensor:
    """One number everywhere."""
    return _filled(lowering, fill_value)


@rule("aten.scalar_tensor.default")
def scalar_tensor(lowering: Lowering, s: Number, **options: Any) -> Tensor:
    """A number as a tensor without dimensions."""
    return _filled(lowering, s)


@rule("aten.fill.Scalar", "aten.fill.Tensor")
def fill(lowering: Lowering, self: Tensor, value: Operand) -> Tensor:
    """One value everywhere, in the type of ``self``."""
    if not isinstance(value, Tensor):
        return _filled(lowering, value)
    return lowering.lazy(self.sizes, self.dtype, lambda index: read(value, index, self.dtype))


@rule("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", "aten.zero.default")
def zeros(lowering: Lowering, **options: Any) -> Tensor:
    """Zero everywhere."""
    return _filled(lowering, 0)


@rule("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(lowering: Lowering, **options: Any) -> Tensor:
    """One everywhere."""
    return _filled(lowering, 1)


# -- ranges -----------------------------------------------------------------------------------------------------------


@rule("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(lowering: Lowering, end: Number, start: Number = 0, step: Number = 1, **options: Any) -> Tensor:
    """``start + i step``"""
    dtype = lowering.output_dtype
    if all(_is_integer(number) for number in (start, step)):
        first, distance = sympy.sympify(_whole(start)), sympy.sympify(_whole(step))
        return lowering.lazy(lowering.output_sizes, dtype, lambda index: _position(first + index[0] * distance, dtype))
    if not dtype.is_floating_point:
        raise RefusedError("dtype", f"a range of {dtype} with fractions")
    wide = torch.float64

    def value(index: Index) -> Expr:
        place = IndexValue(wide, index[0]) * constant(step, wide)
        return convert(constant(start, wide) + place, wide, dtype)

    return lowering.lazy(lowering.output_sizes, dtype, value)


def _is_integer(number: Number) -> bool:
    if isinstance(number, float):
        return number.is_integer() and abs(number) < 2**53
    return isinstance(number, int) or bool(number.is_integer)


def _whole(number: Number) -> Any:
    return int(number) if isinstance(number, (float, bool)) else number


def _position(expression: sympy.Expr, dtype: torch.dtype) -> Expr:
    """An integer expression as a value of a storage type."""
    if expression.is_Integer:
        return rounded_constant(int(expression), dtype)
    return convert(IndexValue(torch.int64, expression), torch.int64, dtype)


@rule("aten.linspace.default")
def linspace(lowering: Lowering, start: Number, end: Number, steps: Any, **options: Any) -> Tensor:
    """From both ends to the middle, as eager does, so that both ends are met exactly."""
    dtype, wide = lowering.output_dtype, torch.float64
    if not dtype.is_floating_point:
        raise RefusedError("dtype", f"a range of {dtype} with fractions")
    count = lowering.output_sizes[0]
    if not count.is_Integer:
        raise RefusedError("dynamic-shape", "the number of steps divides the distance")
    first, last = (constant(number, wide) for number in (start, end))
    if count == 1:
        return lowering.lazy(lowering.output_sizes, dtype, lambda index: convert(first, wide, dtype))
    distance = (last - first) / Constant(wide, float(max(int(count) - 1, 1)))

    def value(index: Index) -> Expr:
        place = IndexValue(wide, index[0])
        from_start = first + distance * place
        from_end = last - distance * (float(int(count) - 1) - place)
        return convert(where(place < float(int(count) // 2), from_start, from_end), wide, dtype)

    return lowering.lazy(lowering.output_sizes, dtype, value)


# -- diagonals --------------------------------------------------------------------------------------------------------


@rule("aten.eye.default", "aten.eye.m")
def eye(lowering: Lowering, **options: Any) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    dtype = lowering.output_dtype
    one, zero = constant(1, dtype), constant(0, dtype)

    def value(index: Index) -> Expr:
        return where(equal(IndexValue(torch.int64, index[0] - index[1]), 0), one, zero)

    return lowering.lazy(lowering.output_sizes, dtype, value)


def _triangle(lowering: Lowering, tensor: Tensor, diagonal: Any, lower: bool) -> Tensor:
    zero = constant(0, tensor.dtype)

    def value(index: Index) -> Expr:
        distance = IndexValue(torch.int64, index[-1] - index[-2] - diagonal)
        kept = distance <= 0 if lower else call("le", 0, distance)
        return where(kept, tensor.at(index), zero)

    return lowering.map(tensor.sizes, tensor.dtype, value)


@rule("aten.tril.default")
def tril(lowering: Lowering, self: Tensor, diagonal: Any) -> Tensor:
    """Zero above a diagonal."""
    return _triangle(lowering, self, diagonal, lower=True)


@rule("aten.triu.default")
def triu(lowering: Lowering, self: Tensor, diagonal: Any) -> Tensor:
    """Zero below a diagonal."""
    return _triangle(lowering, self, diagonal, lower=False)
