"""Attention of one row of queries held against float64: asked by ``triton_answers`` under the interpreter."""

from __future__ import annotations

import math
from typing import Any

import torch
from run_triton_cases import arguments_of

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.graph.trace import trace_region

_SUMS = 16 * torch.finfo(torch.float32).eps


def answer(name: str, sizes: list[int], mask: str, dtype: str) -> dict[str, Any]:
    """The greatest distance from float64, that of eager's formula in the type itself, and what sums in float32 may be
    off that are rounded once: the interpreter cuts the last bits of a bfloat16 off.

    Args:
        name: of torch's op.
        sizes: batch, groups of heads, heads of a group, positions, features of keys and of values.
        mask: "none", "keys" (some hidden), "heads" (numbers of each head), "row" (the first row sees nothing) or "nan".
    """
    from triton_interpreter import InterpretedTarget

    batch, groups, heads, positions, width, depth = sizes
    kind: torch.dtype = getattr(torch, dtype)
    torch.manual_seed(0)
    query = torch.randn(batch, groups * heads, 1, width).to(kind)
    # Caches that were made as [batch, position, group, feature] are read where they lie.
    key = torch.randn(batch, positions, groups, width).to(kind).transpose(1, 2)
    value = torch.randn(batch, groups, positions, depth).to(kind)
    hidden = _mask(mask, batch, groups * heads, positions).to(kind)
    op = getattr(torch.ops.aten, name)

    def shared(x: torch.Tensor) -> torch.Tensor:
        return x[:, :, None].expand(-1, -1, heads, -1, -1).reshape(batch, groups * heads, positions, x.shape[3])

    def step(q: Any, k: Any, v: Any, m: Any) -> Any:
        bias = None if mask == "none" else m.expand(batch, groups * heads, 1, positions)
        return op(q, shared(k), shared(v), bias, False, scale=-0.25)[0]

    given = [query, key, value, hidden]
    region = trace_region(step, given)
    backend = CodegenBackend(InterpretedTarget())
    (result,) = backend.compile(region).run(arguments_of(region, given))
    exact, eager = (
        _formula(*[item.to(precision) for item in given], shared, mask) for precision in (torch.float64, kind)
    )
    kernels = backend.program(region).calls
    return {
        "kernels": [call.kernel.name if isinstance(call.kernel, TemplateKernel) else "fold" for call in kernels],
        "apart": _distance(result, exact),
        "eager": _distance(eager, exact),
        "rounding": float(exact.abs().nan_to_num(0.0).max()) * (torch.finfo(kind).eps + _SUMS),
        "strange": bool(torch.equal(result.isnan(), exact.isnan())),
    }


def _mask(kind: str, batch: int, heads: int, positions: int) -> torch.Tensor:
    if kind == "heads":
        return torch.randn(batch, heads, 1, positions)
    if kind == "row":
        mask = torch.zeros(batch, heads, 1, positions)
        mask[0, 0] = -math.inf
        return mask
    mask = torch.zeros(1, 1, 1, positions).masked_fill(torch.arange(positions) >= max(1, positions // 2), -math.inf)
    return mask.masked_fill(torch.arange(positions) == 0, math.nan) if kind == "nan" else mask


def _formula(query: Any, key: Any, value: Any, hidden: Any, shared: Any, mask: str) -> torch.Tensor:
    scores = query @ shared(key).transpose(2, 3) * -0.25
    scores = scores if mask == "none" else scores + hidden
    weights = torch.softmax(scores, -1)
    seen = (scores == -math.inf).all(-1, keepdim=True)
    return torch.where(seen, 0.0, weights @ shared(value))


def _distance(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).abs().nan_to_num(0.0).max())
