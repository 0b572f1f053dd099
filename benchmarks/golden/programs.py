"""Programs of the golden record that are written here: each has one property that plans and code must respect.

Place: named in ``graphs``. Output: a function or module, and the arguments of each of its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Program = tuple[Callable[..., Any], list[tuple[Any, ...]]]


def _perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 16)
    )


def perceptron() -> Program:
    """Products with pointwise work and a normalization between them; two calls."""
    return _perceptron(), [(torch.randn(32, 64),), (torch.randn(32, 64),)]


def perceptron_of_bfloat16() -> Program:
    """The same in bfloat16."""
    return _perceptron().bfloat16(), [(torch.randn(32, 64, dtype=torch.bfloat16),)]


def perceptron_of_batches() -> Program:
    """The same with three sizes of a batch."""
    return _perceptron(), [(torch.randn(size, 64),) for size in (4, 33, 128)]


def borders() -> Program:
    """Kinds of work that rules give to different backends."""
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.Tanh(), nn.Flatten(),
        nn.Linear(8 * 7 * 7, 32), nn.Sigmoid(), nn.Linear(32, 10),
    )  # fmt: skip
    return layers.eval(), [(torch.randn(2, 3, 16, 16),)]


class _ViewsReturned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x @ self.weight)
        return x[:, 1:3], y.transpose(0, 1), y[::2], x, y.view(-1).detach()


def views_returned() -> Program:
    """Results that share memory with inputs and with one another."""
    return _ViewsReturned(), [(torch.randn(6, 8),)]


def random_numbers() -> Program:
    """Draws of several kinds beside other work."""

    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.randn_like(x) * 0.1
        kept = functional.dropout(x + noise, 0.3, training=True)
        return kept.softmax(-1), torch.rand(16, 4) + torch.bernoulli(torch.full((4,), 0.5))

    return draw, [(torch.randn(16, 32),), (torch.randn(16, 32),)]


class _Counter(nn.Module):
    calls: torch.Tensor
    largest: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.largest.copy_(torch.maximum(self.largest, torch.tensor(1.0)))
        return torch.sigmoid(self.layer(x)) * self.calls


def counter() -> Program:
    """Buffers that every call writes; three calls."""
    return _Counter(), [(torch.randn(4, 16),) for _ in range(3)]


def inputs_written() -> Program:
    """Inputs that are written, whole and through a view."""

    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(y)
        y[:, 0].fill_(1.0)
        return (x * y).sum(-1)

    return write, [(torch.randn(8, 8), torch.randn(8, 8))]


class _Condition(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return torch.cond(y.sum() > 0, lambda value: value.sin() + 1, lambda value: value.cos() * 2, (y,)).relu()


def condition() -> Program:
    """A condition on data, with work before and behind it."""
    return _Condition(), [(torch.randn(4, 16),)]


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (query @ key.transpose(-1, -2) / 4.0).masked_fill(~mask, -1e9)
        return x + self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width))


def written_attention() -> Program:
    """Attention as models write it out."""
    return _Attention(), [(torch.randn(2, 32, 64),)]


def attention_of_lengths() -> Program:
    """The same with four lengths."""
    return _Attention(), [(torch.randn(2, length, 64),) for length in (16, 48, 17, 200)]


def images_of_sizes() -> Program:
    """Convolutions and pooling over images of several sizes."""
    layers = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    return layers.eval(), [(torch.randn(2, 3, size, size),) for size in (24, 32, 50)]


def sizes_of_sizes() -> Program:
    """Sizes that are computed from sizes, and used as numbers."""

    def compute(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = x[:, : x.shape[1] // 2 + 1]
        joined = torch.cat([half, y.expand(x.shape[0], -1)], 1)
        return joined.softmax(-1) * x.shape[1], joined.mean(1) + y.shape[-1]

    return compute, [(torch.randn(rows, rows + 5), torch.randn(1, rows)) for rows in (6, 9, 21)]


def batch_norm() -> Program:
    """Running statistics, in training, two steps."""
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Flatten(),
        nn.Linear(8 * 12 * 12, 4),
    )  # fmt: skip
    return layers, [(torch.randn(4, 3, 16, 16),), (torch.randn(4, 3, 16, 16),)]


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _perceptron(), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(checkpoint(self.first, x, use_reentrant=False).relu())


def checkpointed() -> Program:
    """A part that the backward computes again."""
    return _Checkpointed(), [(torch.randn(8, 64),)]


def dropout() -> Program:
    """An embedding, dropout and a table of classes: draws that forward and backward share."""
    layers = nn.Sequential(
        nn.Embedding(50, 32), nn.Dropout(0.2), nn.Linear(32, 64), nn.SiLU(), nn.Dropout(0.1), nn.Linear(64, 50),
        nn.LogSoftmax(-1),
    )  # fmt: skip
    return layers, [(torch.randint(0, 50, (4, 12)),)]
