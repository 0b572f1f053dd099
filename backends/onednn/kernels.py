"""Kernels: oneDNN's operators in torch, and which element types they take here.

Place: looked up by rules and verdicts. Everything is resolved on first use: importing this costs nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

NO_ACTIVATION = "none"

_NEEDED = (
    "_linear_pointwise",
    "_convolution_pointwise",
    "_convolution_transpose_pointwise",
    "_reorder_linear_weight",
    "_reorder_convolution_weight",
)


def missing_operators() -> tuple[str, ...]:
    """Names of operators that this torch does not have."""
    return tuple(name for name in _NEEDED if not hasattr(torch.ops.mkldnn, name))


def linear() -> Any:
    """``(x, w, bias, activation, scalars, algorithm)``: activation of ``x @ w.T + bias``, any strides."""
    return torch.ops.mkldnn._linear_pointwise.default


def linear_binary() -> Any:
    """``(x, other, w, bias, operation)``: ``x @ w.T + bias`` combined with a tensor of the same rank."""
    return torch.ops.mkldnn._linear_pointwise.binary


def convolution() -> Any:
    """``(x, w, bias, padding, stride, dilation, groups, activation, scalars, algorithm)``."""
    return torch.ops.mkldnn._convolution_pointwise.default


def convolution_binary() -> Any:
    """``(x, other, w, bias, padding, stride, dilation, groups, operation, alpha, activation, scalars, algorithm)``."""
    return torch.ops.mkldnn._convolution_pointwise.binary


def convolution_transpose() -> Any:
    """``(x, w, bias, padding, output_padding, stride, dilation, groups, activation, scalars, algorithm)``."""
    return torch.ops.mkldnn._convolution_transpose_pointwise.default


def pack_linear(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """A weight ``[out, in]`` in oneDNN's own layout, best for products with this many rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def pack_convolution(
    weight: torch.Tensor,
    padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    shape: list[int],
) -> torch.Tensor:
    """A convolution's weight in oneDNN's own layout, best for inputs of this shape."""
    return torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, shape)


@lru_cache(maxsize=1)
def element_types() -> frozenset[torch.dtype]:
    """What this processor has kernels for."""
    types = {torch.float32}
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        types.add(torch.bfloat16)
    if torch.ops.mkldnn._is_mkldnn_fp16_supported():
        types.add(torch.float16)
    return frozenset(types)


def batched(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A product of two batches, matrix by matrix: worth it where each of them keeps all cores busy."""
    kernel = linear()
    pairs = zip(left.unbind(), right.unbind(), strict=True)
    return torch.stack([kernel(first, second.t(), None, NO_ACTIVATION, [], "") for first, second in pairs])
