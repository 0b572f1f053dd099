"""Rules of products of matrices: a fold of products, which targets make with what hardware has for it.

Place: registered by ``lower.table``. Only targets that say so take them (``Target.objection``).
A bias, and the factors of ``addmm``, are a map after the product: schedules put it, and what follows it point by point,
into the product's kernel.
Invariants: sums are made in float32; results are rounded once, at their end.
Non-goals: float64 and integers; choosing between this and a library, which is the planner's business.
"""

from __future__ import annotations

from typing import Any

import torch

from mixbackend.backends.codegen.ir.scalar import Expr, is_element
from mixbackend.backends.codegen.lower.broadcast import read, refuse_undecided
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def _product(lowering: Lowering, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """``left @ right`` of matrices, or of as many of them, stored as ``dtype``."""
    _check(left, right)
    return sums_of_products(lowering, left, right, dtype)


def sums_of_products(lowering: Lowering, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """The same of two tensors with sizes that are known to agree, whatever types of floats they have."""
    left, right = in_memory(lowering, left), in_memory(lowering, right)
    rank = left.rank

    def value(index: Index, inner: Index) -> Expr:
        first = (*index[: rank - 1], inner[0])
        second = (*index[: rank - 2], inner[0], index[rank - 1])
        return left.at(first) * right.at(second)

    sizes = (*left.sizes[:-1], right.sizes[-1])
    (made,) = lowering.reduce("dot", sizes, left.sizes[-1:], value, (dtype,))
    return made


def _check(left: Tensor, right: Tensor) -> None:
    if left.dtype not in _TYPES or right.dtype != left.dtype:
        raise RefusedError("dtype", f"a product of {left.dtype} and {right.dtype}")
    if left.rank not in (2, 3) or left.rank != right.rank:
        raise RefusedError("rank", f"a product of {left.rank} and {right.rank} dimensions")
    if any(size == 0 for tensor in (left, right) for size in tensor.sizes):
        raise RefusedError("argument", "a product of nothing")
    pairs = zip((*left.sizes[:-2], left.sizes[-1]), (*right.sizes[:-2], right.sizes[-2]), strict=True)
    for mine, theirs in pairs:
        if mine != theirs:
            raise RefusedError("dynamic-shape", f"whether {mine} is {theirs} depends on sizes")


def in_memory(lowering: Lowering, tensor: Tensor) -> Tensor:
    """The tensor, computed first if it is no view of one."""
    value = tensor.at(tuple(loop.index for loop in lowering.loops(tensor.sizes)))
    if is_element(value) and lowering.types[value.tensor].dtype == tensor.dtype:
        return tensor
    return lowering.map(tensor.sizes, tensor.dtype, tensor.at)


@rule("aten.mm.default", "aten.bmm.default")
def product(lowering: Lowering, self: Tensor, mat2: Tensor) -> Tensor:
    """``self @ mat2``"""
    return _product(lowering, self, mat2, self.dtype)


@rule("aten.addmm.default")
def add_product(lowering: Lowering, self: Tensor, mat1: Tensor, mat2: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """``beta * self + alpha * (mat1 @ mat2)``"""
    return _added(lowering, self, mat1, mat2, beta, alpha)


@rule("aten.baddbmm.default")
def add_products(
    lowering: Lowering, self: Tensor, batch1: Tensor, batch2: Tensor, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """``beta * self + alpha * (batch1 @ batch2)``"""
    return _added(lowering, self, batch1, batch2, beta, alpha)


def _added(lowering: Lowering, bias: Tensor, left: Tensor, right: Tensor, beta: Any, alpha: Any) -> Tensor:
    if not all(isinstance(factor, (int, float)) for factor in (beta, alpha)):
        raise RefusedError("argument", f"factors {beta} and {alpha}, which only the run knows")
    if bias.dtype != left.dtype:
        raise RefusedError("dtype", f"a bias of {bias.dtype} and a product of {left.dtype}")
    refuse_undecided(lowering, (bias,), lowering.output_sizes)
    made = _product(lowering, left, right, torch.float32)

    def value(index: Index) -> Expr:
        result = made.at(index)
        result = result if alpha == 1 else result * float(alpha)
        if beta == 0:
            # What the bias holds does not matter then, not even NaN.
            return result
        own = read(bias, index, torch.float32)
        return (own if beta == 1 else own * float(beta)) + result

    return lowering.map(lowering.output_sizes, lowering.output_dtype, value)
