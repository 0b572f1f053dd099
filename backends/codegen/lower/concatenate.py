"""Rules that put tensors together: ``cat`` and ``stack``.

Place: registered by ``lower.table``.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from mixbackend.backends.codegen.lower.lowering import Lowering, ValueFunction
from mixbackend.backends.codegen.lower.promotion import convert
from mixbackend.backends.codegen.lower.rules import rule
from mixbackend.backends.codegen.lower.tensor import Tensor
from mixbackend.backends.codegen.lower.view import unsqueeze


@rule("aten.cat.default")
def cat(lowering: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after another along a dimension; one-dimensional empty ones count for nothing, as in eager."""
    sizes = lowering.output_sizes
    kept = [tensor for tensor in tensors if not _is_skipped(tensor, len(sizes))]
    return _joined(lowering, kept, dim % len(sizes))


@rule("aten.stack.default")
def stack(lowering: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors side by side along a new dimension."""
    axis = dim % len(lowering.output_sizes)
    return _joined(lowering, [unsqueeze(tensor, axis) for tensor in tensors], axis)


def _joined(lowering: Lowering, tensors: Sequence[Tensor], axis: int) -> Tensor:
    dtype = lowering.output_dtype

    def converted(tensor: Tensor) -> ValueFunction:
        return lambda index: convert(tensor.at(index), tensor.dtype, dtype)

    parts = [(tensor.sizes[axis], converted(tensor)) for tensor in tensors]
    return lowering.concatenate(lowering.output_sizes, axis, parts, dtype)


def _is_skipped(tensor: Tensor, rank: int) -> bool:
    return tensor.rank == 1 and rank != 1 and tensor.sizes[0] == sympy.Integer(0)
