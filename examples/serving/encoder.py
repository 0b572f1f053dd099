"""The model that is served, and what a server runs it by: the package, or a peer.

``python encoder.py FOLDER`` writes the package and an ONNX file there. Rows and length of a batch are symbolic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

WORDS, WIDTH, HEADS, LAYERS, LONGEST, MOST_ROWS = 8000, 256, 4, 4, 128, 16
PEERS = ("mixbackend", "inductor", "onnxruntime", "eager")

Engine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes words and a mask of those that are no padding, each rows by length; gives a vector per row."""


class Layer(nn.Module):
    """Attention and a feed-forward network, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One layer on rows by length by width."""
        rows, length, _ = x.shape
        split = self.qkv(self.norm(x)).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(split[0], split[1], split[2], mask[:, None, None, :])
        x = x + self.out(found.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.feed(self.norm2(x))


class Encoder(nn.Module):
    """Words to a vector of length one per row."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The mean of what the last layer gives for the words that are no padding."""
        x = self.words(words) + self.places.weight[: words.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
        weights = mask[:, :, None].to(x.dtype)
        return nn.functional.normalize((x * weights).sum(1) / weights.sum(1), dim=-1)


def make() -> Encoder:
    """The model with fixed weights, in place of yours."""
    torch.manual_seed(0)
    return Encoder().eval()


def batch(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments of the model."""
    return torch.arange(rows * length).view(rows, length) % WORDS, torch.ones(rows, length, dtype=torch.bool)


def prepare(folder: Path) -> None:
    """Write ``model.mix`` and ``model.onnx``."""
    import mixbackend

    model, rows, length = (
        make(),
        torch.export.Dim("rows", min=2, max=MOST_ROWS),
        torch.export.Dim("length", min=4, max=LONGEST),
    )
    one, several = ({"words": found, "mask": found} for found in ({1: length}, {0: rows, 1: length}))
    with torch.no_grad():
        # To torch.export, a size that may be one is a program of its own; both share the weights of the package.
        programs = [
            torch.export.export(model, batch(2 * k + 1, 48), dynamic_shapes=found)
            for k, found in ((0, one), (1, several))
        ]
        print(mixbackend.export({"forward": programs}, folder / "model.mix"))
        torch.onnx.export(programs[1], (), folder / "model.onnx", dynamo=True)


def engine(peer: str, folder: Path) -> Engine:
    """What runs the model, as the peer's manual has it; one thread where this process has one."""
    if peer == "mixbackend":
        import mixbackend

        return mixbackend.load(folder / "model.mix")
    if peer == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(folder / "model.onnx", options)
        return lambda words, mask: torch.from_numpy(
            session.run(None, {"words": words.numpy(), "mask": mask.numpy()})[0]
        )
    return torch.compile(make(), dynamic=True) if peer == "inductor" else make()


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
