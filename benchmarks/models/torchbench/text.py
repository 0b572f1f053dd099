"""TorchBench's language models, re-stated in plain torch.

Place: the ``torchbench`` family; each function at the bottom builds (module, args, kwargs) for one entry.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixbackend.benchmarks.models.entry import Loaded
from mixbackend.benchmarks.models.torchbench.layers import Block, TanhGelu

VOCABULARY, WIDTH = 2000, 256


class BertWithHeads(nn.Module):
    """BERT with both pre-training heads, attention and GELU written out by hand."""

    position: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.segment = nn.Embedding(3, WIDTH, padding_idx=0)
        self.register_buffer("position", torch.randn(1, 512, WIDTH))
        self.blocks = nn.ModuleList(Block(activation=TanhGelu(), explicit=True) for _ in range(2))
        self.next_sentence = nn.Linear(WIDTH, 2)
        self.masked_token = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        mask = (ids > 0).unsqueeze(1).repeat(1, ids.size(1), 1).unsqueeze(1)
        x = self.token(ids) + self.position[:, : ids.size(1)] + self.segment(segments)
        for block in self.blocks:
            x = block(x, mask)
        return self.next_sentence(x[:, 0]).log_softmax(-1), self.masked_token(x).log_softmax(-1)


class SmallGpt(nn.Module):
    """nanoGPT: causal blocks, output layer tied to the token embedding, loss inside."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(256, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Block(causal=True) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.dropout(self.token(ids) + self.position(torch.arange(ids.size(1), device=ids.device)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1), ignore_index=-1)


class LlamaBlock(nn.Module):
    """Root-mean-square norms and rotary positions by complex numbers, as in the first published llama code."""

    def __init__(self, width: int = WIDTH, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.gain_attention, self.gain_feed = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.lift = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.lower = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = _scale_to_unit(x, self.gain_attention)
        query, key, value = (
            layer(y).view(batch, length, self.heads, -1) for layer in (self.query, self.key, self.value)
        )
        query, key = (_rotate(part, rotation) for part in (query, key))
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        scores = query @ key.transpose(2, 3) / math.sqrt(width // self.heads) + mask
        mixed = F.softmax(scores.float(), -1) @ value
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = _scale_to_unit(x, self.gain_feed)
        return x + self.lower(F.silu(self.gate(y)) * self.lift(y))


def _scale_to_unit(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * gain


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:3], -1, 2))
    return torch.view_as_real(pairs * rotation[None, :, None]).flatten(3)


class Llama(nn.Module):
    """Two llama blocks; answers the logits of the last position only."""

    angle: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(2))
        self.register_buffer("angle", torch.outer(torch.arange(128.0), 1e4 ** (-torch.arange(0, 64, 2) / 64)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x, length = self.token(ids), ids.size(1)
        mask = torch.full((1, 1, length, length), float("-inf"), device=x.device).triu(1)
        for block in self.blocks:
            x = block(x, torch.polar(torch.ones_like(self.angle), self.angle)[:length], mask)
        return self.head(x[:, -1])


class Translator(nn.Module):
    """Attention is all you need: torch's own encoder and decoder with padding masks."""

    position: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(WIDTH, 4, 2, 2, 512, batch_first=True)
        self.source = nn.Embedding(VOCABULARY, WIDTH)
        self.target = nn.Embedding(VOCABULARY, WIDTH)
        self.register_buffer("position", torch.randn(128, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.transformer.encoder.use_nested_tensor = False

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding, length = source == 0, target.size(1)
        causal = torch.triu(torch.ones(length, length, dtype=torch.bool, device=target.device), 1)
        decoded = self.transformer(
            self.source(source) + self.position[: source.size(1)],
            self.target(target) + self.position[:length],
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return self.head(decoded)


def bert_pytorch() -> Loaded:
    return BertWithHeads(), (torch.randint(0, VOCABULARY, (2, 128)), torch.randint(0, 3, (2, 128))), {}


def nanogpt() -> Loaded:
    return SmallGpt(), (torch.randint(0, VOCABULARY, (2, 128)), torch.randint(0, VOCABULARY, (2, 128))), {}


def llama() -> Loaded:
    return Llama(), (torch.randint(0, VOCABULARY, (2, 64)),), {}


def attention_is_all_you_need() -> Loaded:
    return Translator(), (torch.randint(1, VOCABULARY, (4, 64)), torch.randint(1, VOCABULARY, (4, 60))), {}
