"""Small building blocks that TorchBench's own models share.

Place: below the model files of this folder. Non-goals: weights or hyper-parameters of the originals; only the kinds of
layers and the shape of the computation are kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Layer = Callable[..., nn.Module]
"""A class of modules, or a function that makes one."""


def perceptron(*widths: int, activation: Layer = nn.ReLU, last: Layer | None = None) -> nn.Sequential:
    """Linear layers with an activation between them, and ``last`` (if any) at the end."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1], *([last()] if last else []))


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    norm: Layer | None = nn.BatchNorm2d,
    activation: Layer | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution that keeps the size (at stride 1), then normalisation, then activation."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=norm is None)]
    if norm is not None:
        layers.append(norm(outputs))
    if activation is not None:
        layers.append(activation())
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """``activation(body(x) + shortcut(x))``."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()
        self.activation = activation or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.body(x) + self.shortcut(x))


class TanhGelu(nn.Module):
    """GELU written out with tanh, as early BERT codes did."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


class Block(nn.Module):
    """Transformer block with normalisation first; attention written out (``explicit``) or torch's own."""

    def __init__(
        self,
        width: int = 256,
        heads: int = 4,
        causal: bool = False,
        activation: nn.Module | None = None,
        explicit: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.explicit = heads, causal, explicit
        self.norm_attention, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), activation or nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.norm_attention(x)).split(width, 2)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        if self.explicit:
            mixed = self._attend(query, key, value, mask)
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm_feed(x))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        weights = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        if mask is not None:
            weights = weights.masked_fill(mask == 0, -1e9)
        return F.dropout(weights.softmax(-1), 1e-30, self.training) @ value


class UNet(nn.Module):
    """Encoder and decoder with skip connections; sizes double upwards by transposed convolution."""

    def __init__(self, inputs: int, outputs: int, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        steps = range(depth)

        def twice(i: int, o: int) -> nn.Module:
            return nn.Sequential(convolution(i, o), convolution(o, o))

        self.first = twice(inputs, width)
        self.down = nn.ModuleList(twice(width << i, width << i + 1) for i in steps)
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(width << i + 1, width << i, 2, 2) for i in reversed(steps))
        self.up = nn.ModuleList(twice(width << i + 1, width << i) for i in reversed(steps))
        self.last = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.first(x)]
        for down in self.down:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for enlarge, up in zip(self.enlarge, self.up, strict=True):
            x = up(torch.cat([skips.pop(), enlarge(x)], 1))
        return self.last(x)
