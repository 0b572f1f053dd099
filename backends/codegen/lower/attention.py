"""Rule of scaled dot product attention: the template ``attention``.

Place: rule module, see ``lower.rules``.
Invariants: heads, batches and types agree as the op requires; the logarithm is in float32 whatever the storage type.
Non-goals: dropout, which has to keep eager's random numbers; the backward, which stays with torch.
"""

from __future__ import annotations

import math

import sympy
import torch

from mixbackend.backends.codegen.ir.templates import ATTENTION
from mixbackend.backends.codegen.lower import view
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Tensor

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
