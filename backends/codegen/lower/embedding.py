"""Rules of embedding and its gradient.

Place: registered by ``lower.table``.
Semantics: rows out of range, for which eager raises, are clamped into range and told (see ``lower.access``); the
gradient leaves them out, as eager's does.
Non-goals: ``max_norm`` (it changes the weight) and bags.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Bindings, Constant, Expr, apply, compute_dtype
from mixbackend.backends.codegen.lower.access import addressable, check_index, integer, load, run_time_index
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.scatter import scattered
from mixbackend.backends.codegen.lower.tensor import Index, Tensor


@rule("aten.embedding.default")
def embedding(lowering: Lowering, weight: Tensor, indices: Tensor, **_: Any) -> Tensor:
    """Rows of a table; padding and gradient options change nothing forward."""
    check_index(indices)
    weight = addressable(lowering, weight)
    count, sizes = weight.sizes[0], (*indices.sizes, *weight.sizes[1:])

    def value(index: Index) -> Expr:
        row, bindings = run_time_index(lowering, indices.at(index[: indices.rank]), count, wrap=False)
        return load(weight, (row, *index[indices.rank :]), bindings)

    return lowering.map(sizes, weight.dtype, value)


@rule("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    lowering: Lowering,
    grad_output: Tensor,
    indices: Tensor,
    num_weights: Any,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:
    """Gradients of rows added up per row of the table; those of the padding row are left out."""
    if scale_grad_by_freq:
        raise RefusedError("argument", "scale_grad_by_freq needs how often every row occurs")
    check_index(indices)
    dtype = grad_output.dtype

    def row_at(index: Index) -> tuple[sympy.Symbol, Bindings]:
        return run_time_index(lowering, indices.at(index[: indices.rank]), num_weights, wrap=False, checked=False)

    def destination(index: Index) -> tuple[Index, Bindings]:
        row, bindings = row_at(index)
        return (row, *index[indices.rank :]), bindings

    def is_kept(index: Index) -> Expr:
        given = lowering.cast(indices.at(index[: indices.rank]), torch.int64)
        ((_, inside),) = row_at(index)[1]
        is_inside = apply("eq", given, inside)
        return is_inside if padding_idx < 0 else is_inside & apply("ne", given, integer(padding_idx))

    return scattered(
        lowering,
        sizes=(num_weights, *grad_output.sizes[indices.rank :]),
        dtype=dtype,
        base=lambda index: Constant(compute_dtype(dtype), 0.0),
        updates=grad_output.sizes,
        destination=destination,
        value=grad_output.at,
        mode="add",
        mask=is_kept,
    )
