"""Kernels: fused convolutions of torch, and the same without fusion.

Place: called by written regions. All of them take (image, weight, bias, [other,] stride, padding, dilation) and return
fresh memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

aten = torch.ops.aten

_PLAIN = (False, (0, 0), 1)
"""Not transposed, nothing added to the output, one group."""


def fused_relu(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """``relu(convolution)`` in one kernel."""
    return aten.cudnn_convolution_relu.default(image, weight, bias, stride, padding, dilation, 1)


def fused_add_relu(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    other: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """``relu(convolution + other)`` in one kernel; the other tensor is brought into the layout of the result."""
    return aten.cudnn_convolution_add_relu.default(image, weight, other, 1.0, bias, stride, padding, dilation, 1)


def plain_relu(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """``relu(convolution)`` step by step."""
    return aten.convolution.default(image, weight, bias, stride, padding, dilation, *_PLAIN).relu_()


def plain_add_relu(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    other: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """``relu(convolution + other)`` step by step."""
    return aten.convolution.default(image, weight, bias, stride, padding, dilation, *_PLAIN).add_(other).relu_()
