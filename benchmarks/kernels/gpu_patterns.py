"""What is timed on a GPU: patterns that memory bounds, and products of matrices with what follows them.

Place: read by ``on_gpu``. Inputs are larger than any cache, but for products, which are those of real models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

ROWS, COLUMNS = 16384, 4096
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Pattern:
    """One pattern.

    Attributes:
        function: in plain torch; returns results in the order in which it computes them, as regions do.
        inputs: for a type, on the GPU.
        extra: bytes that are moved beside each input and output once (a gather reads as much as it writes), or less.
    """

    function: Callable[..., Any]
    inputs: Callable[[torch.dtype], Tensors]
    extra: Callable[[Tensors, Tensors], int] = lambda inputs, outputs: 0


def _random(*shapes: tuple[int, ...]) -> Callable[[torch.dtype], Tensors]:
    return lambda dtype: [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]


def _rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def _rotary(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def _with_classes(rows: int, classes: int) -> Callable[[torch.dtype], Tensors]:
    return lambda dtype: [
        torch.randn(rows, classes, device="cuda").to(dtype),
        torch.randint(0, classes, (rows,), device="cuda"),
    ]


def _table(dtype: torch.dtype) -> Tensors:
    return [torch.randn(50257, 1024, device="cuda").to(dtype), torch.randint(0, 50257, (16, 4096), device="cuda")]


def _masked(dtype: torch.dtype) -> Tensors:
    return [torch.randn(16, 16, 512, 1024, device="cuda").to(dtype), torch.rand(512, 1024, device="cuda") > 0.9]


def _layer_norm_backward(
    g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> Any:
    gw = g.float() * w
    normed = (x.float() - mean) * rstd
    inner = (gw * normed).mean(-1, keepdim=True)
    return (rstd * (gw - gw.mean(-1, keepdim=True) - normed * inner)).to(x.dtype)


def _batch_norm_relu(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    return F.relu(torch.ops.aten._native_batch_norm_legit_no_training(x, w, b, m, v.square(), 0.1, 1e-5)[0])


def _dropout(x: torch.Tensor) -> Any:
    return torch.ops.aten.native_dropout(x, 0.1, True)


def _dropout_residual_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    value, mask = torch.ops.aten.native_dropout(x, 0.1, True)
    total = value + r
    return mask, total, F.layer_norm(total, (COLUMNS,), w, b)


def _gelu_dropout(x: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.ops.aten.native_dropout(F.gelu(x + b), 0.1, True)


_PLANE = (ROWS, COLUMNS)
PATTERNS: dict[str, Pattern] = {
    "gelu_bias_residual": Pattern(lambda x, b, r: F.gelu(x + b) + r, _random(_PLANE, (COLUMNS,), _PLANE)),
    "silu_mul": Pattern(lambda x, y: F.silu(x) * y, _random(_PLANE, _PLANE)),
    "add_three": Pattern(lambda x, y, z: x + y * 2 + z, _random(_PLANE, _PLANE, _PLANE)),
    "layer_norm": Pattern(lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b), _random(_PLANE, (COLUMNS,), (COLUMNS,))),
    "layer_norm_768": Pattern(lambda x, w, b: F.layer_norm(x, (768,), w, b), _random((65536, 768), (768,), (768,))),
    "layer_norm_input_gradient": Pattern(
        _layer_norm_backward, _random(_PLANE, _PLANE, (COLUMNS,), (ROWS, 1), (ROWS, 1))
    ),
    "rms_norm": Pattern(_rms_norm, _random(_PLANE, (COLUMNS,))),
    "softmax": Pattern(lambda x: torch.softmax(x, -1), _random(_PLANE)),
    "softmax_128": Pattern(lambda x: torch.softmax(x, -1), _random((524288, 128))),
    "log_softmax": Pattern(lambda x: torch.log_softmax(x, -1), _random(_PLANE)),
    "masked_softmax": Pattern(lambda x, m: torch.softmax(x.masked_fill(m, float("-inf")), -1), _masked),
    "cross_entropy": Pattern(lambda x, t: F.cross_entropy(x.float(), t), _with_classes(4096, 32000)),
    "rotary": Pattern(_rotary, _random((8, 32, 2048, 128), (2048, 128), (2048, 128))),
    "row_sum": Pattern(lambda x: x.sum(-1), _random(_PLANE)),
    "column_sum": Pattern(lambda x: x.sum(0), _random(_PLANE)),
    "sum_of_all": Pattern(lambda x: x.sum(), _random(_PLANE)),
    "transposed_copy": Pattern(lambda x: x.t().contiguous(), _random(_PLANE)),
    "heads_to_rows": Pattern(lambda x: x.transpose(1, 2).reshape(16, 1024, 4096) * 2, _random((16, 32, 1024, 128))),
    "concatenation": Pattern(lambda x, y: torch.cat([x, y], 1) + 1, _random((ROWS, 2048), (ROWS, 1024))),
    "embedding": Pattern(
        lambda w, i: F.embedding(i, w), _table, lambda inputs, outputs: outputs[0].nbytes - inputs[0].nbytes
    ),
    "batch_norm_relu": Pattern(_batch_norm_relu, _random((64, 256, 56, 56), *[(256,)] * 4)),
    "max_pool": Pattern(lambda x: F.max_pool2d(x, 3, 2, 1), _random((64, 64, 112, 112))),
    "dropout": Pattern(_dropout, _random(_PLANE)),
    "gelu_dropout": Pattern(_gelu_dropout, _random(_PLANE, (COLUMNS,))),
    "dropout_residual_norm": Pattern(_dropout_residual_norm, _random(_PLANE, _PLANE, (COLUMNS,), (COLUMNS,))),
    "uniform": Pattern(torch.rand_like, _random(_PLANE), lambda inputs, outputs: -inputs[0].nbytes),
}


@dataclass(frozen=True)
class Product:
    """One product of matrices with what follows it.

    Attributes:
        function: in plain torch.
        shapes: of its inputs; those with four dimensions have their channels innermost.
        flops: of the product alone.
        dtypes: that it is timed in.
    """

    function: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    flops: float
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16, torch.float32)

    def inputs(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """Its inputs, on the GPU."""
        values = [torch.randn(shape, device="cuda").to(dtype) / 8 for shape in self.shapes]
        return [x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in values]


def _linear(rows: int, inner: int, columns: int, function: Callable[..., Any], *others: tuple[int, ...]) -> Product:
    return Product(function, [(rows, inner), (columns, inner), (columns,), *others], 2.0 * rows * inner * columns)


def _pixels(channels: int, side: int, made: int, function: Callable[..., Any], stride: int = 1) -> Product:
    """A convolution of one point over 32 images, with a bias and a residual."""
    result = (32, made, side // stride, side // stride)
    shapes = [(32, channels, side, side), (made, channels, 1, 1), (made,), result]
    flops = 2.0 * 32 * result[2] ** 2 * channels * made
    return Product(function, shapes, flops, (torch.float16, torch.bfloat16))


PRODUCTS: dict[str, Product] = {
    "product_4096": Product(lambda x, w: x @ w, [(4096, 4096), (4096, 4096)], 2.0 * 4096**3),
    "product_of_few_rows": Product(lambda x, w: x @ w, [(16, 4096), (4096, 4096)], 2.0 * 16 * 4096**2),
    "linear_gelu": _linear(8192, 1024, 4096, lambda x, w, b: F.gelu(F.linear(x, w, b))),
    "linear_tanh_gelu": _linear(8192, 1024, 4096, lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh")),
    "linear_residual": _linear(8192, 4096, 1024, lambda x, w, b, r: F.linear(x, w, b) + r, (8192, 1024)),
    "linear_silu_scaled": _linear(8192, 1024, 2816, lambda x, w, b: F.silu(F.linear(x, w, b)) * 0.5),
    "linear_768_3072": _linear(2048, 768, 3072, lambda x, w, b: F.gelu(F.linear(x, w, b))),
    "linear_3072_768": _linear(2048, 3072, 768, lambda x, w, b, r: F.linear(x, w, b) + r, (2048, 768)),
    "ragged": _linear(1000, 777, 1111, lambda x, w, b: F.relu(F.linear(x, w, b))),
    "scores": Product(
        lambda q, k: q @ k.transpose(1, 2) * 0.125, [(128, 512, 64), (128, 512, 64)], 2.0 * 128 * 512 * 512 * 64
    ),
    "pixels_960_7_160": _pixels(960, 7, 160, lambda x, w, b, r: F.conv2d(x, w, b) + r),
    "pixels_16_112_64": _pixels(16, 112, 64, lambda x, w, b, r: F.hardswish(F.conv2d(x, w, b)) + r),
    "pixels_256_56_64": _pixels(256, 56, 64, lambda x, w, b, r: F.relu(F.conv2d(x, w, b) + r)),
    "pixels_64_56_256": _pixels(64, 56, 256, lambda x, w, b, r: F.relu(F.conv2d(x, w, b) + r)),
    "pixels_512_28_128": _pixels(512, 28, 128, lambda x, w, b, r: F.relu(F.conv2d(x, w, b) + r)),
    "pixels_512_14_2048": _pixels(512, 14, 2048, lambda x, w, b, r: F.relu(F.conv2d(x, w, b) + r)),
    "pixels_256_56_512_by_2": _pixels(256, 56, 512, lambda x, w, b, r: F.conv2d(x, w, b, stride=2) + r, stride=2),
    "batched": Product(lambda x, y: x @ y, [(64, 512, 512), (64, 512, 512)], 2.0 * 64 * 512**3),
}
