"""Rules of scans: cumulative sums, products, extremes with their positions, and log-sums.

Place: rule module, see ``lower.rules``.
Invariants: a scan runs in the type in which eager accumulates (double for float32 on the CPU); what leaves is rounded.
"""

from __future__ import annotations

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, apply
from mixbackend.backends.codegen.ir.stages import ScanKind
from mixbackend.backends.codegen.lower.axes import converted, in_order
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.variance import wide_accumulator


@rule("aten.cumsum.default")
def cumsum(lowering: Lowering, self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Sum of everything up to here."""
    return _accumulated(lowering, "sum", self, dim)


@rule("aten.cumprod.default")
def cumprod(lowering: Lowering, self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Product of everything up to here."""
    return _accumulated(lowering, "prod", self, dim)


@rule("aten.logcumsumexp.default")
def logcumsumexp(lowering: Lowering, self: Tensor, dim: int) -> Tensor:
    """Logarithm of the sum of the exponentials of everything up to here."""
    if not self.dtype.is_floating_point:
        raise RefusedError("dtype", f"logarithms of {self.dtype}")
    return _accumulated(lowering, "logsumexp", self, dim)


@rule("aten.cummax.default")
def cummax(lowering: Lowering, self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Largest value up to here, and where it is last."""
    return _extreme(lowering, "max", "ge", self, dim)


@rule("aten.cummin.default")
def cummin(lowering: Lowering, self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Smallest value up to here, and where it is last."""
    return _extreme(lowering, "min", "le", self, dim)


def _accumulated(lowering: Lowering, kind: ScanKind, tensor: Tensor, dim: int) -> Tensor:
    dtype = lowering.output_dtype
    if dtype == torch.bool:
        raise RefusedError("dtype", f"a scan of type {dtype}")
    accumulator = wide_accumulator(lowering, dtype)
    value = converted(lowering, tensor, accumulator)
    if tensor.rank == 0:
        return lowering.map((), dtype, value)
    result = lowering.scan(kind, tensor.sizes, dim % tensor.rank, value, accumulator)
    return lowering.in_type(result, dtype)


def _extreme(lowering: Lowering, kind: ScanKind, reaches: str, tensor: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Extremes and positions: a position is the largest one, up to here, at which a value was the extreme of its time.

    A NaN is the extreme from where it appears on, and the later of two has the position.
    """
    if tensor.rank == 0:
        start = lowering.map((), torch.int64, lambda index: Constant(torch.int64, 0))
        return lowering.map((), tensor.dtype, tensor.at), start
    axis, ordered = dim % tensor.rank, torch.uint8 if tensor.dtype == torch.bool else tensor.compute
    value = in_order(lowering, tensor, truths=torch.uint8)
    stored = ordered if tensor.dtype == torch.bool else tensor.dtype
    extremes = lowering.scan(kind, tensor.sizes, axis, value, stored)

    def position(index: Index) -> Expr:
        item = value(index)
        is_extreme = apply(reaches, item, extremes.at(index))
        if item.dtype.is_floating_point:
            is_extreme = is_extreme | apply("isnan", item)
        return apply("where", is_extreme, IndexValue(torch.int64, index[axis]), Constant(torch.int64, 0))

    positions = lowering.scan("max", tensor.sizes, axis, position, torch.int64)
    return lowering.in_type(extremes, tensor.dtype), positions
