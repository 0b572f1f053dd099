"""The cases of the distributed benchmark: a model, its batches, and how it is spread over ranks.

Place: asked by each rank's process. Random weights from a fixed seed; nothing is downloaded.
Output: ``Case.module`` and ``Case.batch``. A module takes the tensors of a batch and returns the loss, but for the
Llama-style model, which returns logits: where a pipeline is split, the loss stands apart.
Invariants: equal weights on every rank; each shard has its own batch, equal in every process. Nothing drops out, so
that gradients can be held against one process. Weights that will be rounded to bfloat16 are rounded when they are made:
the reference starts from the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mixbackend.benchmarks.distributed.llama import Decoder
from mixbackend.benchmarks.distributed.request import Size
from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision
from mixbackend.benchmarks.peers.models import WithLoss, classification_loss

Way = Literal["ddp", "fsdp2", "tensor", "pipeline"]
Batch = tuple[Tensor, ...]

MICROBATCHES = 4
_BERT_DROPOUT: Mapping[str, Any] = {
    "num_labels": 2,
    "classifier_dropout": 0.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_SMALL_BERT: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One case at one size.

    Attributes:
        name: as given to ``--cases``.
        way: how it is spread.
        make: builds the module on torch's current device.
        draw: one rank's batch, on the processor.
    """

    name: str
    way: Way
    make: Callable[[], nn.Module]
    draw: Callable[[], Batch]

    @property
    def shares_batch(self) -> bool:
        """Whether all ranks work on one batch: then more ranks do not mean more work."""
        return self.way in ("tensor", "pipeline")

    def module(self, device: torch.device) -> nn.Module:
        """The module with its weights in float32, in training mode."""
        torch.manual_seed(0)
        with device:
            return self.make().train()

    def batch(self, shard: int, device: torch.device) -> Batch:
        """The batch of a rank."""
        torch.manual_seed(1000 + (0 if self.shares_batch else shard))
        return tuple(value.to(device) for value in self.draw())


def _resnet50() -> nn.Module:
    enable_torchvision()
    import torchvision

    return _images_last(torchvision.models.resnet50(weights=None))


def _small_resnet() -> nn.Module:
    enable_torchvision()
    from torchvision.models.resnet import BasicBlock, ResNet

    return _images_last(ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10))


def _images_last(module: nn.Module) -> nn.Module:
    return WithLoss(module, classification_loss).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _images(count: int, pixels: int) -> Batch:
    return (torch.randn(count, 3, pixels, pixels).to(memory_format=torch.channels_last),)


class _Classifier(nn.Module):
    """Token ids to the scores of two classes."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        enable_torchvision()
        import transformers

        config = transformers.BertConfig(**{**_BERT_DROPOUT, **settings})
        self.model = transformers.BertForSequenceClassification(config)

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids).logits


def _first_tokens_loss(output: Tensor, inputs: Batch) -> Tensor:
    return nn.functional.cross_entropy(output, inputs[0][:, 0] % 2)


def _bert(settings: Mapping[str, Any]) -> nn.Module:
    return WithLoss(_Classifier(settings), _first_tokens_loss)


def _ids(count: int, length: int, vocabulary: int) -> Batch:
    return (torch.randint(0, vocabulary, (count, length)),)


_LLAMA: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
}
_SMALL_LLAMA: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def _true() -> tuple[Case, ...]:
    tokens = partial(_ids, 2, 1024, _LLAMA["vocab_size"])
    return (
        Case("ddp-resnet50", "ddp", _resnet50, partial(_images, 64, 224)),
        Case("ddp-bert", "ddp", partial(_bert, {}), partial(_ids, 32, 128, 30522)),
        Case("fsdp2-llama", "fsdp2", partial(Decoder, _LLAMA, True), tokens),
        Case("tensor-llama", "tensor", partial(Decoder, _LLAMA, True), tokens),
        Case(
            "pipeline-llama",
            "pipeline",
            partial(Decoder, _LLAMA, True),
            partial(_ids, 2 * MICROBATCHES, 1024, _LLAMA["vocab_size"]),
        ),
    )


def _small() -> tuple[Case, ...]:
    tokens = partial(_ids, 2, 16, _SMALL_LLAMA["vocab_size"])
    return (
        Case("ddp-resnet50", "ddp", _small_resnet, partial(_images, 4, 32)),
        Case("ddp-bert", "ddp", partial(_bert, _SMALL_BERT), partial(_ids, 4, 16, 30522)),
        Case("fsdp2-llama", "fsdp2", partial(Decoder, _SMALL_LLAMA), tokens),
        Case("tensor-llama", "tensor", partial(Decoder, _SMALL_LLAMA), tokens),
        Case(
            "pipeline-llama",
            "pipeline",
            partial(Decoder, _SMALL_LLAMA),
            partial(_ids, MICROBATCHES, 16, _SMALL_LLAMA["vocab_size"]),
        ),
    )


CASES: Mapping[Size, Mapping[str, Case]] = {
    "true": {case.name: case for case in _true()},
    "small": {case.name: case for case in _small()},
}
"""By size and name: true ones for GPUs, small ones for processors."""
