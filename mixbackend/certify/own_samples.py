"""Our own samples: regions of several ops as models have them, weights that are constants, writes, random numbers.

Place: beside ``torch_samples``. What torch's database has of single ops is not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from mixbackend.certify import written_samples
from mixbackend.certify.samples import Sample

aten = torch.ops.aten


@cache
def all_samples() -> tuple[Sample, ...]:
    """In a fixed order, with the same values in every process."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    def whole(name: str, function: Callable[..., Any], *inputs: torch.Tensor, weights: tuple[int, ...] = ()) -> Sample:
        return Sample(name, function, inputs, weights=weights, whole=True)

    return (
        *_pointwise(normal, whole),
        *_products(normal, whole),
        *_attention(normal, whole),
        *_convolutions(normal, whole),
        *_normalizations(normal, whole),
        *_positions(normal, whole, generator),
        *_effects(normal),
        *written_samples.all_samples(normal),
    )


Normal = Callable[..., torch.Tensor]
Whole = Callable[..., Sample]


def _pointwise(normal: Normal, whole: Whole) -> list[Sample]:
    x, y, row, column = normal(6, 5), normal(6, 5), normal(5), normal(6, 1)
    return [
        whole("silu", lambda x: x * torch.sigmoid(x), x),
        whole("gated", lambda x, y: functional.gelu(x, approximate="tanh") * y, x, y),
        whole("broadcast chain", lambda x, row, column: torch.relu(x * row + column) - row, x, row, column),
        whole("numbers and conversions", lambda x: (x.double() * 2 + 1).float().clamp(-1, 1), x),
        whole("masks", lambda x, y: torch.where(x > y, x, torch.zeros_like(y)).masked_fill(y > 1, -1.0), x, y),
        whole("half chain", lambda x, y: torch.tanh(x) * y + x, x.half(), y.half()),
        whole("several results", lambda x, y: (x + y, (x + y) * 2, x.t().contiguous()), x, y),
        whole("without elements", lambda x, y: torch.relu(x + y).sum(0), normal(0, 5), normal(0, 5)),
        whole("one element", lambda x, y: torch.exp(x) * y, normal(1)[0], normal(1)[0]),
        whole("softmax of scores", lambda x, row: torch.softmax(x * 0.5 + row, -1), x, row),
        whole("cross entropy", lambda x: -torch.log_softmax(x, -1)[:, 0].mean(), x),
        whole("statistics", lambda x: ((x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()).amax(1), x),
    ]


def _products(normal: Normal, whole: Whole) -> list[Sample]:
    x, weight, bias = normal(6, 8), normal(7, 8), normal(7)
    wide, narrow = normal(16, 8), normal(8, 16)
    codes = torch.arange(-28, 28, dtype=torch.int8).reshape(7, 8)
    scales = normal(7).abs() + 0.1
    made = []
    for weights, which in (((), ""), ((1, 2), " of constants")):
        named = {
            "linear": (functional.linear, weight, bias),
            "linear and relu": (lambda *given: torch.relu(functional.linear(*given)), weight, bias),
            "linear and gelu": (lambda *given: functional.gelu(functional.linear(*given)), weight, bias),
            "two layers": (_two_layers, wide, narrow),
            "codes and scales": (lambda x, q, scales: torch.mm(x, q.to(x.dtype).t()) * scales, codes, scales),
        }
        made += [
            whole(name + which, function, x, *given, weights=weights) for name, (function, *given) in named.items()
        ]
    return [
        *made,
        whole("batched product", lambda a, b: torch.bmm(a, b.transpose(1, 2)), normal(3, 4, 5), normal(3, 6, 5)),
        whole("half linear", functional.linear, x.bfloat16(), weight.bfloat16(), bias.bfloat16()),
    ]


def _two_layers(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return functional.linear(functional.silu(functional.linear(x, up)), down) + x


def _attention(normal: Normal, whole: Whole) -> list[Sample]:
    q, k, v = (normal(2, 3, 6, 8) for _ in range(3))
    mask = normal(6, 6)

    def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * 8**-0.5, -1) @ v

    def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * 8**-0.5 + mask, -1) @ v

    flash = aten._scaled_dot_product_flash_attention_for_cpu
    return [
        whole("attention by hand", by_hand, q, k, v),
        whole("masked attention by hand", masked, q, k, v, mask),
        whole("flash attention", lambda q, k, v: flash(q, k, v)[0], q, k, v),
        whole("causal flash attention", lambda q, k, v: flash(q, k, v, is_causal=True)[0], q, k, v),
        whole("masked flash attention", lambda q, k, v, m: flash(q, k, v, attn_mask=m)[0], q, k, v, mask),
        whole("half flash attention", lambda q, k, v: flash(q, k, v)[0], *(item.bfloat16() for item in (q, k, v))),
    ]


def _convolutions(normal: Normal, whole: Whole) -> list[Sample]:
    image, kernel, bias = normal(2, 4, 9, 7), normal(6, 4, 3, 3), normal(6)
    grouped, point = normal(4, 1, 3, 3), normal(6, 4, 1, 1)
    scale, shift = normal(6).abs() + 0.5, normal(6)
    conv = functional.conv2d
    made = []
    for weights, which in (((), ""), ((1, 2), " of constants")):
        made += [
            whole(f"convolution{which}", lambda x, w, b: conv(x, w, b, 2, 1), image, kernel, bias, weights=weights),
            whole(
                f"convolution and relu{which}",
                lambda x, w, b: torch.relu(conv(x, w, b)),
                image,
                kernel,
                bias,
                weights=weights,
            ),
            whole(f"pointwise convolution{which}", conv, image, point, bias, weights=weights),
        ]
    return [
        *made,
        whole("depthwise convolution", lambda x, w: conv(x, w, padding=1, groups=4), image, grouped),
        whole("channels last convolution", conv, image.to(memory_format=torch.channels_last), kernel),
        whole(
            "convolution, scale and residual",
            lambda x, w, s, t: torch.relu(conv(x, w) * s[:, None, None] + t[:, None, None]),
            image, kernel, scale, shift, weights=(1, 2, 3),
        ),
        whole("pooling", lambda x: functional.max_pool2d(functional.avg_pool2d(x, 2, 1), 3, 2, 1), image),
    ]  # fmt: skip


def _normalizations(normal: Normal, whole: Whole) -> list[Sample]:
    x, weight, bias = normal(6, 8), normal(8), normal(8)
    image, mean, deviation = normal(2, 8, 5, 5), normal(8), normal(8).abs() + 0.5
    return [
        whole("layer norm", lambda x, w, b: functional.layer_norm(x, (8,), w, b), x, weight, bias),
        whole("root mean square norm", lambda x, w: x * torch.rsqrt(x.square().mean(-1, True) + 1e-6) * w, x, weight),
        whole("group norm", lambda x, w, b: functional.group_norm(x, 2, w, b), image, weight, bias),
        whole(
            "batch norm",
            lambda x, m, v, w, b: functional.batch_norm(x, m, v, w, b),
            image,
            mean,
            deviation,
            weight,
            bias,
        ),
    ]


def _positions(normal: Normal, whole: Whole, generator: torch.Generator) -> list[Sample]:
    table, x = normal(9, 4), normal(6, 5)
    places = torch.randint(0, 9, (2, 3), generator=generator)
    columns = torch.randint(0, 5, (6, 2), generator=generator)
    return [
        whole("embedding", lambda table, places: functional.embedding(places, table) * 2, table, places),
        whole("gather and sum", lambda x, columns: x.gather(1, columns).sum(1), x, columns),
        whole("scatter", lambda x, columns: torch.zeros_like(x).scatter_add(1, columns, x[:, :2]), x, columns),
        whole("parts put together", lambda x: torch.cat([x[:, 3:], x[:, :2].flip(1), x], 1), x),
        whole(
            "rotated halves", lambda x, y: x * y + torch.cat([-x[..., 2:], x[..., :2]], -1), normal(6, 4), normal(6, 4)
        ),
        whole("positions of maxima", lambda x: (x.argmax(1), x.topk(2, 1)[0]), x),
        whole("running sums", lambda x: x.cumsum(0).cumsum(1), x),
    ]


def _effects(normal: Normal) -> list[Sample]:
    x, buffer = normal(6, 5), normal(6, 5)
    rows, values = torch.tensor([1, 4]), normal(2, 5)
    return [
        Sample("dropout", lambda x: aten.native_dropout(x, 0.5, True), (x,)),
        Sample(
            "random numbers", lambda x: (torch.rand_like(x), torch.randn_like(x), torch.bernoulli(x.sigmoid())), (x,)
        ),
        Sample("write a buffer", lambda buffer, x: aten.copy_(buffer, x), (buffer, x)),
        Sample(
            "write rows", lambda buffer, rows, values: aten.index_copy_(buffer, 0, rows, values), (buffer, rows, values)
        ),
    ]
