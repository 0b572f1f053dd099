"""The rows of the GPU benchmark: ten for inference in float16, five training steps with autocast in bfloat16.

Place: asked by the processes of ``benchmarks.gpu``. Random weights from a fixed seed; nothing is downloaded.
Output: ``GpuRow.load`` -> (module on the GPU, its inputs). Every module takes tensors and returns one tensor.
Invariants: equal weights and inputs in every process. Dropout is switched off in training, so that gradients can be
held against float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision
from mixbackend.benchmarks.peers.models import (
    Inputs,
    Logits,
    Loss,
    classification_loss,
    next_token_loss,
)

Phase = Literal["inference", "training"]
Made = tuple[nn.Module, Inputs]

_PIXELS = 224
_BERT: Mapping[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_GPT2: Mapping[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_LLAMA: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
}


class Encoder(nn.Module):
    """Token ids, none of them padding, to the last hidden states."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids).last_hidden_state


def first_token_loss(output: Tensor, inputs: Inputs) -> Tensor:
    """Cross entropy of the first token's features, as a classifier on top would have it."""
    return classification_loss(output[:, 0], inputs)


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One row.

    Attributes:
        name: as given to ``--rows``.
        phase: inference in float16, or a training step with autocast in bfloat16.
        make: builds module and inputs on the processor, in float32.
        loss: of output and inputs, for training.
    """

    name: str
    phase: Phase
    make: Callable[[], Made]
    loss: Loss = classification_loss

    def load(self, device: torch.device) -> Made:
        """Module and inputs on a device; float16 for inference."""
        torch.manual_seed(0)
        module, inputs = self.make()
        module = module.to(device)
        inputs = tuple(value.to(device) for value in inputs)
        _settle(module, inputs)
        module = module.train(self.phase == "training")
        if self.phase == "training":
            return module, inputs
        return module.half(), tuple(value.half() if value.is_floating_point() else value for value in inputs)


def _settle(module: nn.Module, inputs: Inputs) -> None:
    """Give batch norms the statistics of these inputs, and heads that begin at zero some weights: fresh ones make the
    signal vanish, and then every result is as good as another."""
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None
    if norms:
        with torch.no_grad():
            module.train()(*inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    for part in module.modules():
        if isinstance(part, nn.Linear) and not bool(part.weight.detach().any()):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)


def _image(name: str, batch: int) -> Made:
    enable_torchvision()
    import torchvision

    module = torchvision.models.get_model(name, weights=None)
    for part in module.modules():
        # Stochastic depth and dropout draw other numbers under each compiler.
        if type(part).__name__ in ("StochasticDepth", "Dropout"):
            part.p = 0.0
    return module, (torch.randn(batch, 3, _PIXELS, _PIXELS),)


def _ids(vocabulary: int, batch: int, length: int) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def _bert(batch: int, length: int) -> Made:
    enable_torchvision()
    import transformers

    module = Encoder(transformers.BertModel(transformers.BertConfig(**_BERT)))
    return module, (_ids(30522, batch, length),)


def _decoder(architecture: str, settings: Mapping[str, Any], batch: int, length: int) -> Made:
    enable_torchvision()
    import transformers

    family = getattr(transformers, architecture)
    config = family.config_class(**settings)
    return Logits(family(config)), (_ids(config.vocab_size, batch, length),)


_gpt2 = partial(_decoder, "GPT2LMHeadModel", _GPT2, 8, 512)

_ROWS = (
    GpuRow("resnet50", "inference", partial(_image, "resnet50", 32)),
    GpuRow("bert", "inference", partial(_bert, 16, 128)),
    GpuRow("mobilenetv3-large", "inference", partial(_image, "mobilenet_v3_large", 32)),
    GpuRow("vit-b16", "inference", partial(_image, "vit_b_16", 32)),
    GpuRow("gpt2", "inference", _gpt2),
    GpuRow("convnext-tiny", "inference", partial(_image, "convnext_tiny", 32)),
    GpuRow("resnet50-b1", "inference", partial(_image, "resnet50", 1)),
    GpuRow("bert-b1", "inference", partial(_bert, 1, 128)),
    GpuRow("llama", "inference", partial(_decoder, "LlamaForCausalLM", _LLAMA, 4, 512)),
    GpuRow("swin-tiny", "inference", partial(_image, "swin_t", 32)),
    GpuRow("train-bert", "training", partial(_bert, 16, 128), first_token_loss),
    GpuRow("train-resnet50", "training", partial(_image, "resnet50", 32), classification_loss),
    GpuRow("train-gpt2", "training", _gpt2, next_token_loss),
    GpuRow("train-vit-b16", "training", partial(_image, "vit_b_16", 32), classification_loss),
    GpuRow("train-convnext-tiny", "training", partial(_image, "convnext_tiny", 32), classification_loss),
)

ROWS: Mapping[str, GpuRow] = {row.name: row for row in _ROWS}
"""By name, the most telling first: what is left when the time is up are the last ones."""
