"""Rules of scaled dot product attention: the template ``attention``, and others for one row of queries.

Place: rule module, see ``lower.rules``.
A step of generation has one row of queries, reads all keys and values once and computes little. It is the template
``attention_parts``, or, of symbolic sizes, folds like others; what they read is read where it lies: heads that share
keys (``expand``) without a copy for each. Only the ops that torch has for GPUs are lowered so; ``attention`` is for
processors.
Invariants: heads, batches and types agree as the op requires; the logarithm is in float32 whatever the storage type.
Non-goals: dropout, which has to keep eager's random numbers; the backward, and what it wants of the forward, which stay
with torch; several rows of queries on GPUs.
"""

from __future__ import annotations

import math

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr
from mixbackend.backends.codegen.ir.templates import ATTENTION
from mixbackend.backends.codegen.lower import view
from mixbackend.backends.codegen.lower.attention_parts import attention_in_parts, exponential_beside, share_of
from mixbackend.backends.codegen.lower.axes import axes_of, fold
from mixbackend.backends.codegen.lower.broadcast import read
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@rule("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    lowering: Lowering,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """``softmax(query key^T scale + mask) value``, and the logarithm of the sums of exponentials."""
    if dropout_p != 0.0:
        raise RefusedError("random", "attention with dropout")
    _check_tensors(query, key, value, attn_mask)
    batch, heads, queries, width = query.sizes
    scores = (batch, heads, queries, key.sizes[2])
    mask = None if attn_mask is None else view.expand(attn_mask, scores)
    output = (batch, heads, queries, value.sizes[3])
    return lowering.template(
        ATTENTION,
        (query, key, value, mask),
        ((output, query.dtype), (scores[:3], torch.float32)),
        (("causal", bool(is_causal)), ("scale", _factor(scale, width)), ("zeros", True)),
    )


@rule("aten._scaled_dot_product_efficient_attention.default", "aten._scaled_dot_product_cudnn_attention.default")
def attention_of_one_row(
    lowering: Lowering,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    compute_log_sumexp: bool = False,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    """``softmax(query key^T scale + bias) value`` of one query per head; no other result is given."""
    if dropout_p != 0.0:
        raise RefusedError("random", "attention with dropout")
    if compute_log_sumexp or return_debug_mask:
        raise RefusedError("argument", "attention with results that are not the output")
    _check_tensors(query, key, value, attn_bias)
    if query.sizes[2] != 1:
        raise RefusedError("argument", f"attention of {query.sizes[2]} rows of queries: one is taken")
    if is_causal and key.sizes[2] != 1:
        raise RefusedError("argument", "causal attention of one row, which sees the first key alone")
    factor = _factor(scale, query.sizes[3])
    parts = attention_in_parts(lowering, query, key, value, attn_bias, factor)
    return (_one_row(lowering, query, key, value, attn_bias, factor) if parts is None else parts,)


def _one_row(
    lowering: Lowering, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Scores, exponentials beside the largest score and their sum, and values in their proportion, in float32.

    A row of scores that are minus infinity throughout gives zeros, as torch's kernels do.
    """
    batch, heads, _, width = query.sizes
    rows, zero = (batch, heads), sympy.Integer(0)
    number = Constant(torch.float32, scale)
    mask = None if mask is None else view.expand(mask, (batch, heads, 1, key.sizes[2]))

    def term(index: Index, inner: Index) -> Expr:
        first = read(query, (*index[:2], zero, inner[0]), torch.float32)
        return first * read(key, (*index, inner[0]), torch.float32)

    (dots,) = lowering.reduce("sum", (*rows, key.sizes[2]), (width,), term, (torch.float32,))

    def score(index: Index) -> Expr:
        own = dots.at(index) * number
        return own if mask is None else own + read(mask, (*index[:2], zero, index[2]), torch.float32)

    scores = lowering.map(dots.sizes, torch.float32, score)
    keys = axes_of(scores, 2)
    (largest,) = fold(lowering, "max", keys, scores.at, (torch.float32,))

    def exponential(index: Index) -> Expr:
        return exponential_beside(scores.at(index), largest.at(keys.keep(index)))

    shares = lowering.map(scores.sizes, torch.float32, exponential)
    (total,) = fold(lowering, "sum", keys, shares.at, (torch.float32,))

    def weighted(index: Index, inner: Index) -> Expr:
        own = read(value, (*index[:2], inner[0], index[2]), torch.float32)
        return shares.at((*index[:2], inner[0])) * own

    (sums,) = lowering.reduce("sum", (*rows, value.sizes[3]), key.sizes[2:3], weighted, (torch.float32,))

    def output(index: Index) -> Expr:
        return share_of(sums.at((*index[:2], index[3])), total.at(index[:2]))

    return lowering.map((batch, heads, 1, value.sizes[3]), query.dtype, output)


def _factor(scale: float | None, width: sympy.Expr) -> float:
    """What scores are multiplied with."""
    if scale is None:
        if not width.is_Integer:
            raise RefusedError("dynamic-shape", f"attention over {width} features: their number scales the scores")
        return 1.0 / math.sqrt(int(width))
    if not isinstance(scale, (int, float)):
        raise RefusedError("argument", f"attention with the scale {scale}, which only the run knows")
    if not math.isfinite(scale):
        raise RefusedError("argument", f"attention with the scale {scale}")
    return float(scale)


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    if query.dtype not in _TYPES or key.dtype != query.dtype or value.dtype != query.dtype:
        raise RefusedError("dtype", f"attention of {query.dtype}, {key.dtype} and {value.dtype}")
    if mask is not None and mask.dtype not in (query.dtype, torch.float32):
        raise RefusedError("dtype", f"attention of {query.dtype} with a mask of {mask.dtype}")
    if any(tensor.rank != 4 for tensor in (query, key, value)):
        raise RefusedError("rank", "attention of tensors that have not four dimensions")
    if mask is not None and mask.rank not in (2, 4):
        raise RefusedError("rank", f"attention with a mask of {mask.rank} dimensions")
    if any(size == 0 for tensor in (query, key, value) for size in tensor.sizes):
        raise RefusedError("argument", "attention of nothing")
    if any(tensor.sizes[:2] != query.sizes[:2] for tensor in (key, value)):
        raise RefusedError("argument", "attention in which keys have other batches or heads than queries")
    if key.sizes[2] != value.sizes[2] or key.sizes[3] != query.sizes[3]:
        raise RefusedError("argument", "attention in which keys do not fit to queries or values")
