"""Samples of what models write out in several ops and backends take as one: products and convolutions with what follows
them, attention by hand, quantised weights.

Place: a part of ``own_samples``. Each form stands alone, so that a pattern that is wrong in one form alone is found.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from mixbackend.certify.samples import Sample

Function = Callable[[torch.Tensor], torch.Tensor]
Normal = Callable[..., torch.Tensor]


def _by_formula(one: float) -> Function:
    return lambda x: 0.5 * x * (one + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


_AFTER: dict[str, Function] = {
    "gelu": functional.gelu,
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu by formula": _by_formula(1.0),
    "gelu by formula with an integer": _by_formula(1),
    "silu": functional.silu,
    "silu by product": lambda x: x * torch.sigmoid(x),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
    "leaky relu": lambda x: functional.leaky_relu(x, 0.1),
    "relu": torch.relu,
    "hardsigmoid": functional.hardsigmoid,
    "hardtanh": lambda x: functional.hardtanh(x, -0.5, 0.5),
    "clamp": lambda x: torch.clamp(x, -0.5, 0.25),
}


def all_samples(normal: Normal) -> Iterator[Sample]:
    """In a fixed order."""
    yield from _followed("linear", functional.linear, normal(6, 8), normal(7, 8), normal(7))
    yield from _followed("convolution", functional.conv2d, normal(2, 4, 9, 7), normal(6, 4, 3, 3), normal(6))
    for masks, scaled, copied, expanded in itertools.product(range(3), (False, True), (False, True), (False, True)):
        yield _attention(normal, masks, scaled, copied, expanded)
    yield from _quantised(normal)


def _followed(
    name: str, product: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> Iterator[Sample]:
    """A product with constant weights, then a function or another tensor of its shape."""
    for word, after in _AFTER.items():
        yield Sample(f"{name}, then {word}", _then(product, after), (x, weight, bias), weights=(1, 2))
    other = torch.cos(product(x, weight, bias))
    joined: dict[str, Callable[..., torch.Tensor]] = {
        "sum": lambda x, weight, bias, other: product(x, weight, bias) + other,
        "factor": lambda x, weight, bias, other: product(x, weight, bias) * other,
        "sum and relu": lambda x, weight, bias, other: torch.relu(product(x, weight, bias) + other),
    }
    for word, function in joined.items():
        yield Sample(f"{name}, then {word}", function, (x, weight, bias, other), weights=(1, 2))


def _then(product: Callable[..., torch.Tensor], after: Function) -> Callable[..., torch.Tensor]:
    return lambda *given: after(product(*given))


def _attention(normal: Normal, masks: int, scaled: bool, copied: bool, expanded: bool) -> Sample:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *added: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(q, k.transpose(1, 2))
        scores = scores * 0.35 if scaled else scores
        for mask in added:
            scores = scores + mask
        weights = torch.softmax(scores, -1)
        weights = weights.clone() if copied else weights
        return torch.bmm(torch.ops.aten.expand(weights, weights.shape) if expanded else weights, v)

    words = [f"{masks} masks", *["scaled"] * scaled, *["copied"] * copied, *["expanded"] * expanded]
    given = [normal(3, 6, 8), normal(3, 5, 8), normal(3, 5, 8), *(normal(6, 5) for _ in range(masks))]
    return Sample(f"attention: {', '.join(words)}", attention, tuple(given))


def _quantised(normal: Normal) -> Iterator[Sample]:
    x, bias = normal(6, 8), normal(7)
    codes = (torch.arange(56, dtype=torch.int64) * 37 % 255 - 127).to(torch.int8)
    straight, turned = codes.reshape(8, 7), codes.reshape(7, 8)
    forms: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
        "codes": (lambda x, q: torch.mm(x, q.to(x.dtype)), (x, straight)),
        "codes and bias": (lambda x, q, b: torch.addmm(b, x, q.to(x.dtype)), (x, straight, bias)),
        "turned codes": (lambda x, q: torch.mm(x, q.to(x.dtype).t()), (x, turned)),
        "turned codes and bias": (lambda x, q, b: torch.addmm(b, x, q.to(x.dtype).t()), (x, turned, bias)),
    }
    for word, (function, given) in forms.items():
        yield Sample(f"product of {word}", function, given, weights=(1,))
