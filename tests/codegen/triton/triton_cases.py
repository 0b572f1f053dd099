"""What the Triton target is held against: patterns in plain torch, in odd shapes, strides and types.

One table for the interpreter, the compiler ahead of time and the GPU. Sizes are small, since the interpreter takes
milliseconds per block; ``rows`` and ``columns`` can be made larger where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

Build = Callable[[torch.dtype], Sequence[torch.Tensor]]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
SINGLE = (torch.float32,)
HALVES = (torch.float32, torch.float16)
"""For products: Triton's interpreter multiplies no bfloat16."""


@dataclass(frozen=True)
class Case:
    """One pattern.

    Attributes:
        function: in plain torch.
        build: its inputs for a type; seeded by ``inputs_of``.
        dtypes: that it is tried in.
        dynamic: whether sizes over 1 are symbols.
        kernels: how many there should be; 0 where it does not matter.
    """

    function: Callable[..., Any]
    build: Build
    dtypes: tuple[torch.dtype, ...] = SINGLE
    dynamic: bool = False
    kernels: int = 0


def inputs_of(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """The inputs of a case, the same every time."""
    torch.manual_seed(len(name))
    return list(CASES[name].build(dtype))


def _normal(*shapes: tuple[int, ...]) -> Build:
    return lambda dtype: [torch.randn(shape).to(dtype) for shape in shapes]


def _images(*shapes: tuple[int, ...]) -> Build:
    """Those with four dimensions have their channels innermost."""
    return lambda dtype: [_laid_out(torch.randn(shape)).to(dtype) for shape in shapes]


def _images_of_norms(*shapes: tuple[int, ...]) -> Build:
    """The same with vectors in float32, as norms have them in models: eager's kernels for GPUs take no others."""
    return lambda dtype: [
        _laid_out(torch.randn(shape)).to(dtype if len(shape) == 4 else torch.float32) for shape in shapes
    ]


def _laid_out(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value


def _integers(high: int, *shapes: tuple[int, ...]) -> Build:
    return lambda dtype: [torch.randint(-high, high, shape).to(dtype) for shape in shapes]


def _with_places(build: Build, high: int, shape: tuple[int, ...]) -> Build:
    return lambda dtype: [*build(dtype), torch.randint(0, high, shape)]


def _strided(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(14, 9).to(dtype).t()[::2], torch.randn(3, 5, 14).to(dtype)[1]]


def _nan_rows(dtype: torch.dtype) -> list[torch.Tensor]:
    x = torch.randn(5, 37)
    x[1, 7], x[2, 3], x[3, 36] = float("nan"), float("inf"), float("-inf")
    return [x.to(dtype)]


def _masked_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.masked_fill(mask, float("-inf")), -1)


def _no_bias(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.full((17,), float("nan")).to(dtype), *(torch.randn(20, 20).to(dtype), torch.randn(20, 17).to(dtype))]


def _at_once(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> Any:
    """Four computations that have nothing to do with each other."""
    return x * 3, F.gelu(y), z.transpose(0, 1) * 2, w + 1


def _rotary(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def _rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def _rotary_of_norm(x: torch.Tensor, w: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """As in Qwen3: each head is normalised, then the halves of it change places."""
    return _rotary(_rms_norm(x, w), cosine, sine)


def _batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.ops.aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)


def _batch_norm_backward(g: torch.Tensor, x: torch.Tensor, out: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> Any:
    """Behind a ReLU, as image networks have it."""
    g = torch.ops.aten.threshold_backward(g, out, 0)
    outputs = [True, True, True]
    return torch.ops.aten.native_batch_norm_backward(g, x, w, None, None, m, w.abs(), True, 1e-5, outputs)


def _gelu_backward(g: torch.Tensor, x: torch.Tensor) -> Any:
    """Behind a linear layer, whose bias has the sum of all rows."""
    made = torch.ops.aten.gelu_backward(g, x)
    return made, made.sum(0)


def _residual_backward(
    g: torch.Tensor, h: torch.Tensor, x: torch.Tensor, out: torch.Tensor, *rest: torch.Tensor
) -> Any:
    """Two gradients meet behind a ReLU: what they make together goes on beside the batch norm as well."""
    made = torch.ops.aten.threshold_backward(g + h, out, 0)
    w, m = rest
    outputs = [True, True, True]
    return made, *torch.ops.aten.native_batch_norm_backward(made, x, w, None, None, m, w.abs(), True, 1e-5, outputs)


def _layer_norm_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [x.shape[-1]], w, b, 1e-5)
    return torch.ops.aten.native_layer_norm_backward(g, x, [x.shape[-1]], mean, rstd, w, b, [True, True, True])


def _embedding_backward(g: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.embedding_dense_backward(g, places, 11, -1, False)


def _integer_arithmetic(a: torch.Tensor, b: torch.Tensor) -> Any:
    b = torch.where(b == 0, 3, b)
    return a // b, a % b, torch.fmod(a, b), a & b, a ^ b, ~a, a * b - 7, torch.minimum(a, b), -a.abs()


def _float_arithmetic(a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.floor_divide(a, b), torch.remainder(a, b), torch.fmod(a, b), torch.maximum(a, b), torch.sign(a)


def _scores(scores: torch.Tensor) -> torch.Tensor:
    """Of all tokens but the last, a row each, in float32."""
    return torch.ops.aten.slice(scores, 1, 0, -1).reshape(-1, scores.shape[-1]).float()


def vocabulary_loss(scores: torch.Tensor, target: torch.Tensor) -> Any:
    """Cross entropy as a training step's forward has it: with the numbers per row from which its gradient follows."""
    wide = _scores(scores)
    largest = torch.ops.aten.amax(wide, [1], True)
    shifted = wide - largest
    logarithm = torch.ops.aten.log(torch.ops.aten.sum(torch.ops.aten.exp(shifted), [1], True))
    return (*torch.ops.aten.nll_loss_forward(shifted - logarithm, target, None, 1, 3), largest, logarithm)


def vocabulary_gradient(
    scores: torch.Tensor,
    target: torch.Tensor,
    slope: torch.Tensor,
    weight: torch.Tensor,
    largest: torch.Tensor,
    logarithm: torch.Tensor,
) -> torch.Tensor:
    """The same step's backward up to the product that made the scores."""
    aten = torch.ops.aten
    result = _scores(scores) - largest - logarithm
    gradient = aten.nll_loss_backward(slope, result, target, None, 1, 3, weight)
    gradient = aten._log_softmax_backward_data(gradient, result, 1, result.dtype).to(scores.dtype)
    batch, length, classes = scores.shape
    gradient = gradient.reshape(batch, length - 1, classes)
    return aten.slice_backward(gradient, [batch, length, classes], 1, 0, -1, 1).reshape(-1, classes)


def _vocabulary(dtype: torch.dtype) -> list[torch.Tensor]:
    target = torch.randint(0, 50, (10,))
    target[2] = 3
    return [torch.randn(2, 6, 50).to(dtype), target]


def _vocabulary_and_statistics(dtype: torch.dtype) -> list[torch.Tensor]:
    scores, target = _vocabulary(dtype)
    _, weight, largest, logarithm = vocabulary_loss(scores, target)
    return [scores, target, torch.tensor(2.0), weight, largest, logarithm]


CASES: dict[str, Case] = {
    # points
    "gelu_bias_residual": Case(lambda x, b, r: F.gelu(x + b) + r, _normal((9, 33), (33,), (9, 33)), FLOATS, kernels=1),
    "at_once": Case(_at_once, _normal((9, 33), (1100,), (3, 40, 2), (5,)), FLOATS, kernels=4),
    "silu_mul": Case(lambda x, y: F.silu(x) * y, _normal((7, 1, 29), (7, 5, 29)), FLOATS, kernels=1),
    "strided": Case(lambda x, y: x.exp() - y, lambda dtype: _strided(dtype), FLOATS, kernels=1),
    "transposed_copy": Case(lambda x: x.transpose(1, 2).contiguous(), _normal((3, 37, 70)), FLOATS, kernels=1),
    "transposed_sum": Case(lambda x, y: x.t() + y, _normal((70, 130), (130, 70)), kernels=1),
    "rotary": Case(_rotary, _normal((2, 3, 5, 16), (5, 16), (5, 16)), FLOATS, kernels=1),
    "concatenation": Case(lambda x, y: torch.cat([x * 2, y.abs(), x], 1) + 1, _normal((5, 7), (5, 9)), kernels=1),
    "many_parts": Case(lambda x, y: torch.cat([x, y, x + 1, y * 2, x, y, x - y, y, x, x], 0), _normal((5, 3), (5, 3))),
    "padding": Case(lambda x: F.pad(x, (1, 2, 0, 3), value=0.5).tanh(), _normal((3, 4, 5)), FLOATS, kernels=1),
    "elementary": Case(
        lambda x: torch.log1p(x.abs()) + torch.erf(x) * torch.cos(x) + torch.pow(x.abs(), 0.3), _normal((41,))
    ),
    "float_arithmetic": Case(_float_arithmetic, _normal((6, 11), (6, 11))),
    "integer_arithmetic": Case(
        _integer_arithmetic, _integers(50, (6, 11), (6, 11)), (torch.int64, torch.int32, torch.int8)
    ),
    "comparisons": Case(lambda x, y: ((x > y) & (x != 0)) | (y >= 0.5), _normal((6, 11), (6, 11)), FLOATS),
    "bools": Case(lambda x: (x ^ x.flip(0), ~x, x.float() + 1, x & True), lambda _: [torch.rand(5, 7) > 0.5]),
    "casts": Case(
        lambda x: (x.half(), x.bfloat16(), (x * 20).to(torch.int32), (x * 9).to(torch.int8), x > 0), _normal((5, 7))
    ),
    "clamp_where": Case(lambda x, y: torch.where(x > 0, x.clamp(-1, 1), y), _normal((5, 7), (7,)), FLOATS),
    "nothing": Case(lambda x, y: (x + 1, y * 2), _normal((0, 7), (3,))),
    "one": Case(lambda x: x.exp() + 1, _normal(())),
    "symbolic_points": Case(lambda x, b: F.gelu(x + b), _normal((9, 33), (33,)), dynamic=True, kernels=1),
    "positions_beyond_32_bits": Case(
        lambda x: (
            x + torch.arange(0, 4_000_000_000, 1_000_000, device=x.device),
            x * torch.arange(5_000_000_000, 5_000_004_000, device=x.device),
        ),
        lambda dtype: [torch.arange(4000).to(dtype)],
        (torch.int64,),
    ),
    "running_extremes": Case(
        lambda x: (*torch.cummax(x, -1), *torch.cummin(x, -1)),
        lambda dtype: [torch.arange(3 * 700).reshape(3, 700).mul(31).remainder(97).to(dtype)],
        (torch.int8, torch.uint8, torch.int16, torch.bool, torch.int64, torch.float32),
    ),
    "arange": Case(lambda x: x + torch.arange(11, dtype=x.dtype, device=x.device), _normal((3, 11))),
    # rows
    "layer_norm": Case(lambda x, w, b: F.layer_norm(x, (77,), w, b), _normal((5, 77), (77,), (77,)), FLOATS, kernels=1),
    "rotary_of_norm": Case(_rotary_of_norm, _normal((2, 3, 5, 16), (16,), (5, 16), (5, 16)), FLOATS, kernels=1),
    "rms_norm": Case(_rms_norm, _normal((5, 77), (77,)), FLOATS, kernels=1),
    "softmax": Case(lambda x: torch.softmax(x, -1), _nan_rows, FLOATS, kernels=1),
    "softmax_of_columns": Case(lambda x: torch.softmax(x, 1), _normal((3, 19, 21)), FLOATS, kernels=1),
    "softmax_of_few": Case(lambda x: torch.softmax(x, 1), _normal((3, 4, 21)), kernels=1),
    "log_softmax": Case(lambda x: torch.log_softmax(x, -1), _normal((5, 37)), FLOATS, kernels=1),
    "masked_softmax": Case(
        _masked_softmax, lambda dtype: [torch.randn(4, 5, 37).to(dtype), torch.rand(5, 37) > 0.7], FLOATS, kernels=1
    ),
    "cross_entropy": Case(
        lambda x, t: F.cross_entropy(x, t, reduction="none"),
        _with_places(_normal((6, 50)), 50, (6,)),
        FLOATS,
        kernels=1,
    ),
    "mean_cross_entropy": Case(lambda x, t: F.cross_entropy(x, t), _with_places(_normal((6, 50)), 50, (6,)), kernels=2),
    "vocabulary_loss": Case(vocabulary_loss, _vocabulary, FLOATS, kernels=2),
    "vocabulary_gradient": Case(vocabulary_gradient, _vocabulary_and_statistics, FLOATS, kernels=2),
    "group_norm": Case(lambda x, w, b: F.group_norm(x, 2, w, b), _normal((3, 6, 4, 5), (6,), (6,)), FLOATS),
    "batch_norm": Case(_batch_norm, _normal((3, 6, 4, 5), (6,), (6,))),
    "image_statistics": Case(
        lambda x: torch.var_mean(x, (0, 2, 3)), _images((4, 16, 16, 20)), (torch.float32, torch.bfloat16), kernels=2
    ),
    "batch_norm_backward": Case(
        _batch_norm_backward,
        _images_of_norms(*[(4, 16, 16, 20)] * 3, (16,), (16,)),
        (torch.float32, torch.bfloat16),
        kernels=3,
    ),
    "residual_backward": Case(
        _residual_backward,
        _images_of_norms(*[(4, 16, 16, 20)] * 4, (16,), (16,)),
        (torch.float32, torch.bfloat16),
        kernels=3,
    ),
    "gelu_backward": Case(_gelu_backward, _normal((1040, 20), (1040, 20)), (torch.float32, torch.bfloat16), kernels=2),
    "layer_norm_backward": Case(_layer_norm_backward, _normal((19, 37), (19, 37), (37,), (37,))),
    "row_sum": Case(lambda x: x.sum(-1), _normal((7, 130)), FLOATS, kernels=1),
    "column_sum": Case(lambda x: x.sum(0), _normal((35, 70)), FLOATS, kernels=1),
    "middle_sum": Case(lambda x: x.sum(1), _normal((3, 50, 20)), kernels=1),
    "sum_of_all": Case(lambda x: x.sum(), _normal((70, 300)), kernels=2),
    "variance": Case(lambda x: torch.var_mean(x, -1), _normal((5, 130)), kernels=1),
    "column_variance": Case(lambda x: torch.var_mean(x, 0), _normal((77, 21)), FLOATS, kernels=1),
    "variance_of_few": Case(lambda x: torch.var_mean(x, 0), _normal((5, 21)), kernels=1),
    "symbolic_variance": Case(lambda x: torch.var_mean(x, 0), _normal((77, 21)), dynamic=True, kernels=1),
    "extremes": Case(lambda x: (x.amax(-1), x.amin(-1), (x > 0).any(-1), (x > 2).all(0)), _nan_rows),
    "positions": Case(lambda x: (x.argmax(-1), x.argmin(0)), _nan_rows),
    "integer_sums": Case(lambda x: (x.sum(-1), x.prod(0), x.amax(1)), _integers(4, (5, 9)), (torch.int64, torch.int32)),
    "symbolic_rows": Case(
        lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b), _normal((5, 77), (77,), (77,)), dynamic=True
    ),
    "no_rows": Case(lambda x: x.sum(0), _normal((0, 7))),
    # scans
    "cumulative_sum": Case(lambda x: x.cumsum(-1), _normal((3, 70)), FLOATS, kernels=1),
    "cumulative_sum_of_columns": Case(lambda x: x.cumsum(0), _normal((37, 5)), kernels=1),
    "cumulative_maximum": Case(lambda x: torch.logcumsumexp(x, -1), _normal((3, 40)), kernels=1),
    # places that only the values tell
    "embedding": Case(lambda w, i: F.embedding(i, w), _with_places(_normal((11, 20)), 11, (3, 4)), FLOATS, kernels=1),
    "index_select": Case(lambda x, i: x.index_select(1, i) * 2, _with_places(_normal((5, 11)), 11, (7,)), kernels=1),
    "gather": Case(lambda x, i: x.gather(1, i), _with_places(_normal((5, 11)), 11, (5, 3)), kernels=1),
    "index_add": Case(
        lambda x, y, i: x.index_add(0, i, y), _with_places(_normal((11, 20), (30, 20)), 11, (30,)), kernels=2
    ),
    "scatter_add": Case(lambda x, y, i: x.scatter_add(1, i, y), _with_places(_normal((5, 11), (5, 30)), 11, (5, 30))),
    "embedding_backward": Case(_embedding_backward, _with_places(_normal((30, 20)), 11, (30,))),
    "slice_scatter": Case(lambda x, y: torch.slice_scatter(x, y, 1, 2, 6), _normal((5, 11), (5, 4))),
    # windows
    "max_pool": Case(lambda x: F.max_pool2d(x, 3, 2, 1), _normal((2, 3, 9, 8)), FLOATS, kernels=1),
    "average_pool": Case(
        lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False), _normal((2, 3, 9, 8))
    ),
    "adaptive_pool": Case(lambda x: F.adaptive_avg_pool2d(x, 3), _normal((2, 3, 10, 8))),
    "upsample": Case(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), _normal((2, 3, 5, 4))),
    # products of matrices
    "product": Case(lambda x, w: x @ w, _normal((40, 70), (70, 50)), HALVES, kernels=1),
    "linear_gelu_residual": Case(
        lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r,
        _normal((2, 9, 64), (96, 64), (96,), (2, 9, 96)),
        HALVES,
        kernels=1,
    ),
    "linear_into_heads": Case(
        lambda x, w: F.linear(x, w).view(2, 9, 4, 8).transpose(1, 2).contiguous(),
        _normal((2, 9, 32), (32, 32)),
        HALVES,
        kernels=1,
    ),
    "batched_product": Case(lambda x, y: x @ y.transpose(1, 2), _normal((3, 33, 20), (3, 17, 20)), HALVES, kernels=1),
    "product_with_factors": Case(
        lambda z, x, y: torch.baddbmm(z, x, y, beta=0.5, alpha=2.0),
        _normal((3, 33, 17), (3, 33, 20), (3, 20, 17)),
        kernels=1,
    ),
    "product_without_bias": Case(
        lambda z, x, y: torch.addmm(z, x, y, beta=0), lambda dtype: _no_bias(dtype), HALVES, kernels=1
    ),
    "product_with_an_expanded_factor": Case(
        lambda x, w: (x.expand(40, 70) @ w, w @ x.t()[:, :1].expand(50, 40)), _normal((40, 1), (70, 50)), HALVES
    ),
    "rotary_angles": Case(
        lambda f, p: (f[None, :, None].expand(2, -1, 1) @ p[:, None, :]).transpose(1, 2),
        _normal((32,), (2, 24)),
        HALVES,
    ),
    "strided_product": Case(lambda x, w: F.relu(x[::2] @ w[:, 3:].t()), _normal((35, 20), (24, 23)), HALVES, kernels=1),
    "scores": Case(
        lambda q, k, m: torch.softmax(q @ k.transpose(-1, -2) * 0.3 + m, -1),
        _normal((2, 3, 9, 16), (2, 3, 11, 16), (9, 11)),
        HALVES,
        kernels=2,
    ),
    "linear_norm": Case(
        lambda x, w, b: F.layer_norm(F.linear(x, w, b), (48,)), _normal((30, 64), (48, 64), (48,)), HALVES, kernels=2
    ),
    "gated_products": Case(lambda x, w, v: F.silu(x @ w) * (x @ v), _normal((30, 64), (64, 48), (64, 48)), kernels=2),
    "product_of_a_row": Case(lambda x, w: x @ w + 1, _normal((1, 64), (64, 48)), HALVES, kernels=1),
    "gated_row": Case(lambda x, w, v: F.silu(x @ w) * (x @ v), _normal((1, 64), (64, 48), (64, 48)), HALVES, kernels=1),
    "projections_of_a_row": Case(
        lambda x, w, v, u: (x @ w.t(), F.relu(x @ v.t()), x @ u.t()),
        _normal((1, 64), (48, 64), (17, 64), (5, 64)),
        HALVES,
        kernels=3,
    ),
    "row_and_narrow_weight": Case(
        lambda x, w, s: (x @ w.to(x.dtype).t()) * s,
        lambda dtype: [
            torch.randn(1, 64).to(dtype),
            torch.randint(-128, 127, (40, 64), dtype=torch.int8),
            torch.rand(40).to(dtype),
        ],
        HALVES,
        kernels=1,
    ),
    "row_of_batches": Case(lambda x, y: x @ y.transpose(1, 2), _normal((3, 1, 20), (3, 17, 20)), HALVES, kernels=1),
    "column": Case(lambda x, w: x @ w, _normal((40, 70), (70, 1)), HALVES, kernels=1),
    "product_of_wide_type": Case(
        lambda x, w: (x @ w).float() * 2, _normal((20, 40), (40, 30)), (torch.float16,), kernels=1
    ),
    "symbolic_product": Case(lambda x, w: F.relu(x @ w), _normal((30, 64), (64, 48)), HALVES, dynamic=True, kernels=1),
    "pixels": Case(
        lambda x, w, b, r: F.relu(F.conv2d(x, w, b) + r),
        _images((2, 40, 5, 7), (24, 40, 1, 1), (24,), (2, 24, 5, 7)),
        (torch.float16,),
        kernels=1,
    ),
    "every_second_pixel": Case(
        lambda x, w: F.conv2d(x, w, stride=2), _images((2, 24, 5, 7), (40, 24, 1, 1)), (torch.float16,), kernels=1
    ),
    "scaled_pixels": Case(
        lambda x, w, b, s: F.hardswish(F.conv2d(x, w, b)) * s,
        _images((2, 40, 5, 7), (24, 40, 1, 1), (24,), (2, 24, 1, 1)),
        (torch.float16,),
        kernels=1,
    ),
    "pixels_of_a_batch": Case(
        lambda x, w, b: F.silu(F.conv2d(x, w, b)),
        _images((3, 40, 5, 7), (24, 40, 1, 1), (24,)),
        (torch.float16,),
        dynamic=True,
    ),
    "squeeze_and_excite": Case(
        lambda x, w, b: x * torch.sigmoid(F.conv2d(x.mean((2, 3), keepdim=True), w, b)),
        _images((2, 40, 5, 7), (40, 40, 1, 1), (40,)),
        (torch.float16,),
    ),
    "depthwise": Case(lambda x, w: F.conv2d(x, w, padding=1, groups=4), _normal((2, 4, 6, 5), (4, 1, 3, 3))),
}
