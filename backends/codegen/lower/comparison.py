"""Rules of comparisons, conditions, logic on bits, and selection.

Place: registered by ``lower.table``.
Semantics: operands are compared in torch's common type; a number is first rounded to it. NaN is true as a condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply, as_stored, call, compute_dtype
from mixbackend.backends.codegen.lower.broadcast import pointwise, read, refuse_undecided
from mixbackend.backends.codegen.lower.formula import equal, where
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import Operand, result_type
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor


def _comparison(name: str) -> Callable[..., Tensor]:
    def lower(lowering: Lowering, self: Tensor, other: Operand) -> Tensor:
        dtype = result_type(self, other)

        def compare(first: Expr, second: Expr) -> Expr:
            return apply(name, as_stored(first, dtype), as_stored(second, dtype))

        return pointwise(lowering, (self, other), dtype, compare, rounded=True)

    return lower


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    rule(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_comparison(_name))


def _floating_test(test: Callable[[Expr], Expr]) -> Callable[..., Tensor]:
    """A test of floating values that no others pass."""

    def lower(lowering: Lowering, self: Tensor) -> Tensor:
        if self.dtype.is_floating_point:
            return pointwise(lowering, (self,), self.dtype, test)
        return lowering.lazy(lowering.output_sizes, torch.bool, lambda index: Constant(torch.bool, False))

    return lower


rule("aten.isnan.default")(_floating_test(lambda value: apply("isnan", value)))
rule("aten.isinf.default")(_floating_test(lambda value: equal(apply("abs", value), math.inf)))
rule("aten.isposinf.default")(_floating_test(lambda value: equal(value, math.inf)))
rule("aten.isneginf.default")(_floating_test(lambda value: equal(value, -math.inf)))


@rule("aten.signbit.default")
def sign_bit(lowering: Lowering, self: Tensor) -> Tensor:
    """Whether the sign is negative, that of zeros and NaNs included."""
    if self.dtype == torch.bool:
        return lowering.lazy(lowering.output_sizes, torch.bool, lambda index: Constant(torch.bool, False))
    if not self.dtype.is_floating_point:
        return pointwise(lowering, (self,), self.dtype, lambda value: value < 0)
    return pointwise(lowering, (self,), self.dtype, lambda value: call("copysign", 1.0, value) < 0.0)


# -- logic ------------------------------------------------------------------------------------------------------------


def _logical(name: str) -> Callable[..., Tensor]:
    def lower(lowering: Lowering, self: Tensor, other: Tensor) -> Tensor:
        return pointwise(lowering, (self, other), torch.bool, lambda a, b: apply(name, a, b))

    return lower


for _name in ("and", "or", "xor"):
    rule(f"aten.logical_{_name}.default")(_logical(_name))


@rule("aten.logical_not.default")
def logical_not(lowering: Lowering, self: Tensor) -> Tensor:
    """Whether a value is zero."""
    return pointwise(lowering, (self,), torch.bool, lambda value: apply("not", value))


def _bitwise(name: str) -> Callable[..., Tensor]:
    def lower(lowering: Lowering, self: Operand, other: Operand) -> Tensor:
        dtype = lowering.output_dtype
        if dtype.is_floating_point:
            raise RefusedError("dtype", f"bits of {dtype}")
        return pointwise(lowering, (self, other), dtype, lambda a, b: apply(name, a, b))

    return lower


for _name in ("and", "or", "xor"):
    rule(*(f"aten.bitwise_{_name}.{form}" for form in ("Tensor", "Scalar", "Scalar_Tensor")))(_bitwise(_name))
for _side, _short in (("left", "lshift"), ("right", "rshift")):
    _forms = [f"aten.bitwise_{_side}_shift.{form}" for form in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")]
    rule(*_forms, f"aten.__{_short}__.Scalar", f"aten.__{_short}__.Tensor")(_bitwise(f"shift_{_side}"))


@rule("aten.bitwise_not.default")
def bitwise_not(lowering: Lowering, self: Tensor) -> Tensor:
    """Every bit flipped; of bools: not."""
    return pointwise(lowering, (self,), self.dtype, lambda value: apply("not", value))


# -- selection --------------------------------------------------------------------------------------------------------


@rule("aten.where.self")
def select_where(lowering: Lowering, condition: Tensor, self: Operand, other: Operand) -> Tensor:
    """``self`` where the condition holds, else ``other``."""
    dtype = lowering.output_dtype
    refuse_undecided(lowering, (condition, self, other), lowering.output_sizes)

    def value(index: Index) -> Expr:
        chosen = read(condition, index, torch.bool)
        return where(chosen, read(self, index, dtype, rounded=True), read(other, index, dtype, rounded=True))

    return lowering.map(lowering.output_sizes, dtype, value)


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def fill_masked(lowering: Lowering, self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """``value`` where the mask holds, else ``self``."""
    if isinstance(value, float) and not math.isfinite(value) and not compute_dtype(self.dtype).is_floating_point:
        raise RefusedError("argument", f"{value} is no {self.dtype}")
    return select_where(lowering, mask, value, self)
