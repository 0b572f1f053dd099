"""The process of ``test_lightning``: trains with Lightning, in eager and compiled, and compares."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, __file__.rpartition("/")[0])
from held_against_eager import Wrap, data, hold, parameters_of

import mixbackend


class Classifier(lightning.LightningModule):
    """A small convolution net with batch norm; nothing in it is random."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(144, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images)

    def training_step(self, batch: Sequence[torch.Tensor], number: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def batches(dtype: torch.dtype) -> DataLoader[Any]:
    """Three batches."""
    labels = torch.arange(12) % 3
    return DataLoader(TensorDataset(data(dtype, 12, 1, 8, 8), labels), batch_size=4)


def trained(wrap: Wrap, dtype: torch.dtype, what: str) -> list[torch.Tensor]:
    """Weights after two epochs."""
    torch.manual_seed(0)
    model = Classifier().to(dtype)
    if what == "fabric":
        return with_fabric(wrap(model), model, dtype)
    if what == "part":
        model.body = wrap(model.body)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        precision="64-true" if dtype == torch.float64 else "32-true",
    )
    trainer.fit(wrap(model) if what == "module" else model, batches(dtype))
    return parameters_of(model)


def with_fabric(compiled: Any, model: Classifier, dtype: torch.dtype) -> list[torch.Tensor]:
    """The same with a loop of one's own: Fabric compiles again what is handed to it compiled."""
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    ready, optimizer = fabric.setup(compiled, model.configure_optimizers())
    for images, labels in batches(dtype):
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(ready(images), labels))
        optimizer.step()
    return parameters_of(model)


def main(what: str) -> None:
    """Train three times and compare."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # The object that users have, which is one for all who ask.
    mixture = mixbackend.auto()
    hold(lambda wrap, dtype: trained(wrap, dtype, what), mixture)
    print("equal to eager")


if __name__ == "__main__":
    main(sys.argv[1])
