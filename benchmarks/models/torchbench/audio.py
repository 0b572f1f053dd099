"""TorchBench's speech and music models, re-stated in plain torch; most are recurrent.

Place: the ``torchbench`` family; each function at the bottom builds (module, args, kwargs) for one entry.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixbackend.benchmarks.models.entry import Loaded
from mixbackend.benchmarks.models.torchbench.layers import Block, perceptron

VOCABULARY, WIDTH = 2000, 256


class SpeechTransformer(nn.Module):
    """Encoder over acoustic frames with padding, cross attention, causal decoder."""

    position: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(320, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("position", torch.randn(512, WIDTH))
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.ModuleList(Block(explicit=True) for _ in range(2))
        self.decoder = nn.ModuleList(Block(causal=True) for _ in range(2))
        self.cross = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, frames: Tensor, lengths: Tensor, targets: Tensor) -> Tensor:
        padding = torch.arange(frames.size(1), device=frames.device)[None] >= lengths[:, None]
        memory = self.norm(self.project(frames)) + self.position[: frames.size(1)]
        for block in self.encoder:
            memory = block(memory, (~padding)[:, None, None]) * (~padding)[..., None]
        x = self.token(targets) * 16.0 + self.position[: targets.size(1)]
        x, _ = self.cross(x, memory, memory, key_padding_mask=padding)
        for block in self.decoder:
            x = block(x)
        return self.head(x)


class SpeakerEncoder(nn.Module):
    """Two LSTM layers with projections; the last frame, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.ModuleList(nn.LSTM(width, 256, batch_first=True) for width in (40, 128))
        self.project = nn.ModuleList(nn.Linear(256, 128, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for recurrent, project in zip(self.recurrent, self.project, strict=True):
            x = project(recurrent(x)[0])
        return F.normalize(x[:, -1], p=2, dim=1)


class SourceSeparator(nn.Module):
    """Demucs: gated one-dimensional U-Net around a bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        widths = [2, 16, 32, 64]
        pairs = list(itertools.pairwise(widths))
        encoder = [nn.Sequential(nn.Conv1d(i, o, 8, 4), nn.ReLU(), nn.Conv1d(o, 2 * o, 1), nn.GLU(1)) for i, o in pairs]
        decoder = [
            nn.Sequential(nn.Conv1d(o, 2 * o, 3, padding=1), nn.GLU(1), nn.ConvTranspose1d(o, i, 8, 4))
            for i, o in pairs
        ]
        self.encoder, self.decoder = nn.ModuleList(encoder), nn.ModuleList(decoder[::-1])
        self.recurrent = nn.LSTM(64, 64, 2, bidirectional=True)
        self.linear = nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        skips, length = [], x.size(-1)
        for encode in self.encoder:
            x = encode(x)
            skips.append(x)
        x = self.linear(self.recurrent(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for decode in self.decoder:
            skip = skips.pop()
            x = decode(x[..., : skip.size(-1)] + skip[..., : x.size(-1)])
        return F.pad(x, (0, length - x.size(-1)))


class TextToSpectrogram(nn.Module):
    """Tacotron 2: a decoder cell that attends to the encoded text once per frame, then a refining network."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(148, WIDTH)
        self.convolutions = nn.Sequential(_convolve(WIDTH, WIDTH, nn.ReLU), _convolve(WIDTH, WIDTH, nn.ReLU))
        self.encoder = nn.LSTM(WIDTH, 128, batch_first=True, bidirectional=True)
        self.key = nn.Linear(WIDTH, 64, bias=False)
        self.query = nn.Linear(WIDTH, 64, bias=False)
        self.score = nn.Linear(64, 1, bias=False)
        self.prepare = perceptron(80, 128, 128, last=nn.ReLU)
        self.cell = nn.LSTMCell(384, WIDTH)
        self.out = nn.Linear(512, 80)
        self.refine = nn.Sequential(_convolve(80, 128, nn.Tanh), nn.Conv1d(128, 80, 5, padding=2))

    def forward(self, ids: Tensor, frames: Tensor) -> Tensor:
        encoded = self.encoder(self.convolutions(self.token(ids).transpose(1, 2)).transpose(1, 2))[0]
        key = self.key(encoded)
        hidden = cell = context = encoded.new_zeros(ids.size(0), WIDTH)
        outputs = []
        for step in range(frames.size(1)):
            hidden, cell = self.cell(torch.cat([self.prepare(frames[:, step]), context], 1), (hidden, cell))
            scores = self.score(torch.tanh(self.query(hidden)[:, None] + key)).squeeze(-1)
            context = torch.bmm(scores.softmax(1)[:, None], encoded).squeeze(1)
            outputs.append(self.out(torch.cat([hidden, context], 1)))
        coarse = torch.stack(outputs, 2)
        return coarse + self.refine(coarse)


def _convolve(inputs: int, outputs: int, activation: type[nn.Module]) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(inputs, outputs, 5, padding=2), nn.BatchNorm1d(outputs), activation(), nn.Dropout(0.5)
    )


def speech_transformer() -> Loaded:
    module = SpeechTransformer()
    return module, (torch.randn(2, 160, 320), torch.tensor([160, 120]), torch.randint(0, VOCABULARY, (2, 30))), {}


def tts_angular() -> Loaded:
    return SpeakerEncoder(), (torch.randn(8, 50, 40),), {}


def demucs() -> Loaded:
    return SourceSeparator(), (torch.randn(1, 2, 8000),), {}


def tacotron2() -> Loaded:
    return TextToSpectrogram(), (torch.randint(0, 148, (2, 40)), torch.randn(2, 10, 80)), {}
