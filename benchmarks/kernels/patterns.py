"""The fused patterns that are timed: what lies between the matrix products of real models.

Place: read by ``measure``.
Input: rows and columns (or an equal number of elements in the shape a pattern needs) and a floating type.
Output: per pattern a function in plain torch or ATen and its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

aten = torch.ops.aten
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Pattern:
    """One pattern.

    Attributes:
        name: in tables.
        function: on the inputs; returns a tensor or a tuple of tensors.
        inputs: builds them for rows, columns and a type; seeded by the caller.
        streaming: whether every input and output is touched once, in order: then bandwidth is its limit.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[int, int, torch.dtype], Tensors]
    streaming: bool = True


def _plane(count: int = 1) -> Callable[[int, int, torch.dtype], Tensors]:
    return lambda rows, columns, dtype: [torch.randn(rows, columns, dtype=dtype) for _ in range(count)]


def _plane_and_rows(count: int, planes: int = 1) -> Callable[[int, int, torch.dtype], Tensors]:
    def build(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
        return [
            *(torch.randn(rows, columns, dtype=dtype) for _ in range(planes)),
            *(torch.randn(columns, dtype=dtype) for _ in range(count)),
        ]

    return build


def _image(rows: int, columns: int, dtype: torch.dtype, channels: int = 64) -> torch.Tensor:
    """As many elements as the plane has, as images: channels first, square, several of them where there is room."""
    side = 4
    while side < 64 and channels * 4 * side * side <= rows * columns:
        side *= 2
    return torch.randn(max(rows * columns // (channels * side * side), 1), channels, side, side, dtype=dtype)


def _image_and_channels(count: int) -> Callable[[int, int, torch.dtype], Tensors]:
    def build(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
        return [_image(rows, columns, dtype), *(torch.rand(64, dtype=dtype) + 0.5 for _ in range(count))]

    return build


def _images(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return [_image(rows, columns, dtype)]


def _with_classes(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return [torch.randn(rows, columns, dtype=dtype), torch.randint(0, columns, (rows,))]


def _backward_of_classes(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    value, target = _with_classes(rows, columns, dtype)
    return [torch.ones((), dtype=dtype), torch.log_softmax(value, 1), target, torch.tensor(float(rows), dtype=dtype)]


def _tokens(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return [
        torch.randint(0, 1000, (rows,)),
        torch.randn(1000, columns, dtype=dtype),
        torch.randn(rows, columns, dtype=dtype),
        torch.randn(columns, dtype=dtype),
        torch.randn(columns, dtype=dtype),
    ]


def _rotary(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    width = min(columns, 64)
    value = torch.randn(1, columns // width, rows, width, dtype=dtype)
    return [value, torch.randn(rows, width, dtype=dtype), torch.randn(rows, width, dtype=dtype)]


def _masked(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return [torch.randn(rows, columns, dtype=dtype), torch.rand(rows, columns) > 0.3]


def _gradient_and_mask(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    return list(_masked(rows, columns, dtype))


def _layer_norm_backward(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    value, gradient = torch.randn(rows, columns, dtype=dtype), torch.randn(rows, columns, dtype=dtype)
    weight, bias = torch.randn(columns, dtype=dtype), torch.randn(columns, dtype=dtype)
    _, mean, scale = torch.native_layer_norm(value, (columns,), weight, bias, 1e-5)
    return [gradient, value, mean, scale, weight, bias]


def _batch_norm_backward(rows: int, columns: int, dtype: torch.dtype) -> Tensors:
    value = _image(rows, columns, dtype)
    gradient = torch.randn_like(value)
    channels = value.shape[1]
    return [gradient, value, torch.ones(channels), torch.randn(channels), torch.rand(channels) + 0.5]


def _rms_norm(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = value.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(value.dtype) * weight


def _rotate(value: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    half = value.shape[-1] // 2
    turned = torch.cat((-value[..., half:], value[..., :half]), dim=-1)
    return value * cosine + turned * sine


def _embed(tokens: torch.Tensor, table: torch.Tensor, position: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    scale, shift = weights
    return F.layer_norm(F.embedding(tokens, table) + position, (table.shape[1],), scale, shift)


def _quantize(value: torch.Tensor) -> torch.Tensor:
    scale = value.abs().amax(-1, keepdim=True).float() / 127.0
    codes = torch.clamp(torch.round(value.float() / scale), -128, 127).to(torch.int8)
    return (codes.float() * scale).to(value.dtype)


def _batch_norm(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *running: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.batch_norm(value, running[0], running[1], weight, bias, False, 0.1, 1e-5))


def _softmax_backward(gradient: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return aten._softmax_backward_data(gradient, value, -1, value.dtype)


PATTERNS: tuple[Pattern, ...] = (
    Pattern("layer norm", lambda x, w, b: F.layer_norm(x, (x.shape[1],), w, b), _plane_and_rows(2)),
    Pattern("add, layer norm", lambda x, y, w, b: F.layer_norm(x + y, (x.shape[1],), w, b), _plane_and_rows(2, 2)),
    Pattern(
        "layer norm backward",
        lambda g, x, m, s, w, b: aten.native_layer_norm_backward(g, x, [x.shape[1]], m, s, w, b, [True, True, True]),
        _layer_norm_backward,
        streaming=False,
    ),
    Pattern("rms norm", _rms_norm, _plane_and_rows(1)),
    Pattern("softmax", lambda x: torch.softmax(x, -1), _plane()),
    Pattern("masked softmax", lambda x, m: torch.softmax(x.masked_fill(m, -1e4) * 0.125, -1), _masked),
    Pattern("softmax backward", _softmax_backward, _plane(2)),
    Pattern("bias, gelu", lambda x, b: F.gelu(x + b), _plane_and_rows(1)),
    Pattern("tanh gelu", lambda x: F.gelu(x, approximate="tanh"), _plane()),
    Pattern("gelu backward", lambda g, x: aten.gelu_backward(g, x), _plane(2)),
    Pattern("swiglu", lambda x, y: F.silu(x) * y, _plane(2)),
    Pattern("sigmoid gate, residual", lambda x, y, z: torch.sigmoid(x) * y + z, _plane(3)),
    Pattern("batch norm, relu", _batch_norm, _image_and_channels(4)),
    Pattern(
        "batch norm training",
        lambda x, w, b, m, v: aten._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.1, 1e-5),
        _image_and_channels(4),
        streaming=False,
    ),
    Pattern(
        "batch norm backward",
        lambda g, x, w, m, s: aten.native_batch_norm_backward(
            g, x, w, None, None, m, s, True, 1e-5, [True, True, True]
        ),
        _batch_norm_backward,
        streaming=False,
    ),
    Pattern("group norm", lambda x, w, b: F.group_norm(x, 8, w, b), _image_and_channels(2), streaming=False),
    Pattern("cross entropy", lambda x, t: F.cross_entropy(x, t), _with_classes),
    Pattern(
        "cross entropy backward",
        lambda g, p, t, count: aten._log_softmax_backward_data(
            aten.nll_loss_backward(g, p, t, None, 1, -100, count), p, 1, p.dtype
        ),
        _backward_of_classes,
        streaming=False,
    ),
    Pattern("embedding, position, norm", _embed, _tokens, streaming=False),
    Pattern("rotary", _rotate, _rotary, streaming=False),
    Pattern("dropout backward", lambda g, m: aten.native_dropout_backward(g, m, 1.25), _gradient_and_mask),
    Pattern("max pooling", lambda x: F.max_pool2d(x, 3, 2, 1), _images, streaming=False),
    Pattern("average pooling", lambda x: F.avg_pool2d(x, 2), _images, streaming=False),
    Pattern("nearest upsampling", lambda x: F.interpolate(x, scale_factor=2), _images, streaming=False),
    Pattern(
        "bilinear upsampling",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        _images,
        streaming=False,
    ),
    Pattern("cat, relu", lambda x, y: torch.relu(torch.cat((x, y), 1)), _plane(2)),
    Pattern("column sums", lambda x: x.sum(0), _plane()),
    Pattern("row sums", lambda x: x.sum(1), _plane()),
    Pattern("row maxima", lambda x: x.amax(1), _plane()),
    Pattern("full mean of squares", lambda x, y: ((x - y) ** 2).mean(), _plane(2)),
    Pattern("transpose", lambda x: x.t().contiguous(), _plane(), streaming=False),
    Pattern("transpose, add", lambda x, y: x.t() + y, lambda r, c, d: _plane(2)(max(r, c), max(r, c), d), False),
    Pattern("heads apart", lambda x: x.view(x.shape[0], -1, 64).transpose(0, 1).contiguous(), _plane(), False),
    Pattern("quantise, dequantise", _quantize, _plane()),
    Pattern("cumulative sum", lambda x: x.cumsum(1), _plane()),
    Pattern("conversion", lambda x: x.to(torch.bfloat16 if x.dtype != torch.bfloat16 else torch.float32), _plane()),
)
"""Every pattern that is timed."""
