"""The rule of cross products.

Place: registered by ``lower.table``.
Semantics: the dimension has three elements in both factors, which torch has checked; others broadcast.
"""

from __future__ import annotations

from mixbackend.backends.codegen.ir.scalar import Expr
from mixbackend.backends.codegen.lower.broadcast import pointwise
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.reshaping import rolled
from mixbackend.backends.codegen.lower.rules import rule
from mixbackend.backends.codegen.lower.tensor import Tensor


@rule("aten.linalg_cross.default")
def cross_product(lowering: Lowering, self: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """``a[i + 1] * b[i + 2] - a[i + 2] * b[i + 1]``, places modulo 3."""
    axis = dim % self.rank
    factors = [rolled(lowering, tensor, axis, -places) for places in (1, 2) for tensor in (self, other)]

    def value(left_next: Expr, right_next: Expr, left_last: Expr, right_last: Expr) -> Expr:
        return left_next * right_last - left_last * right_next

    return pointwise(lowering, factors, lowering.output_dtype, value)
