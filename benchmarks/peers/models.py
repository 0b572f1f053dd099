"""Twelve real architectures at true size, for the comparison with peers.

Place: asked by the peers' processes. Random weights from a fixed seed, but for the sentence encoder: its pretrained
weights are taken where their package is installed. Nothing is downloaded.
Input: a name and a batch size. Output: ``PeerModel.load`` -> (module, tensors): every module takes tensors by position
and returns one tensor, so that whole-model exports see just what is compared.
Invariants: equal weights and inputs in every process; dropout layers stay in training graphs but drop nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mixbackend.benchmarks.models.entry import KEPT_DROPOUT, Entry
from mixbackend.benchmarks.models.sentence_encoder import PACKAGE, SentenceEncoder, build_encoder
from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision

TOKENS = 128
PIXELS = 224

Inputs = tuple[Tensor, ...]
Loss = Callable[[Tensor, Inputs], Tensor]


def classification_loss(output: Tensor, inputs: Inputs) -> Tensor:
    """Cross entropy with labels that count up from zero."""
    return F.cross_entropy(output, torch.arange(output.shape[0], device=output.device))


def next_token_loss(output: Tensor, inputs: Inputs) -> Tensor:
    """Cross entropy of every token with the one after it, as language models compute their loss."""
    return F.cross_entropy(output[:, :-1].flatten(0, 1), inputs[-1][:, 1:].flatten())


def square_loss(output: Tensor, inputs: Inputs) -> Tensor:
    """Mean of squares, for models that end in hidden states."""
    return output.square().mean()


def mean_loss(output: Tensor, inputs: Inputs) -> Tensor:
    """Mean, for vectors of unit length: their squares have no slope."""
    return output.mean()


@dataclass(frozen=True, slots=True)
class PeerModel:
    """One architecture.

    Attributes:
        name: as given to ``--models``.
        make: batch size to (module, inputs).
        loss: of output and inputs, for training steps.
        training_batch: batch size of training steps, whatever was asked for inference.
        origin: package of the module's class.
    """

    name: str
    make: Callable[[int], tuple[nn.Module, Inputs]]
    loss: Loss
    training_batch: int
    origin: str

    def load(self, batch: int, train: bool, dtype: torch.dtype) -> tuple[nn.Module, Inputs]:
        """Module and inputs in a dtype; the same values in every process."""

        def make() -> Any:
            module, inputs = self.make(batch)
            return module, inputs, {}

        module, inputs, _ = Entry(self.name, "demo", make, self.origin).load(train)
        cast = tuple(value.to(dtype) if value.is_floating_point() else value for value in inputs)
        return module.to(dtype), cast


class WithLoss(nn.Module):
    """A model and its loss: what is compiled for a training step."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.loss(self.module(*inputs), inputs)


class Hidden(nn.Module):
    """Token ids and mask to the last hidden states."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


class Logits(nn.Module):
    """Token ids to the logits of a decoder."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


class SequenceLogits(nn.Module):
    """Token ids of encoder and decoder to the decoder's logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, decoder_ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, decoder_input_ids=decoder_ids, use_cache=False).logits


def _image_model(name: str, batch: int) -> tuple[nn.Module, Inputs]:
    enable_torchvision()
    import timm

    return timm.create_model(name, pretrained=False), (torch.randn(batch, 3, PIXELS, PIXELS),)


def _ids(batch: int, vocabulary: int) -> Tensor:
    return torch.randint(0, vocabulary, (batch, TOKENS))


def _transformer(architecture: str, settings: Mapping[str, Any]) -> nn.Module:
    enable_torchvision()
    import transformers

    family = getattr(transformers, architecture)
    return family(family.config_class(**settings))


def _encoder(architecture: str, settings: Mapping[str, Any], batch: int) -> tuple[nn.Module, Inputs]:
    module = Hidden(_transformer(architecture, settings))
    return module, (_ids(batch, 30522), torch.ones(batch, TOKENS, dtype=torch.int64))


def _decoder(architecture: str, settings: Mapping[str, Any], batch: int) -> tuple[nn.Module, Inputs]:
    model = _transformer(architecture, settings)
    return Logits(model), (_ids(batch, settings["vocab_size"]),)


def _t5(batch: int) -> tuple[nn.Module, Inputs]:
    model = _transformer("T5ForConditionalGeneration", T5_SMALL)
    return SequenceLogits(model), (_ids(batch, T5_SMALL["vocab_size"]), _ids(batch, T5_SMALL["vocab_size"]))


def _sentence_encoder(batch: int) -> tuple[nn.Module, Inputs]:
    if importlib.util.find_spec(PACKAGE) is not None:
        module = build_encoder()
    else:
        module = SentenceEncoder(_transformer("BertModel", MINILM))
    return module, (_ids(batch, 30522), torch.ones(batch, TOKENS, dtype=torch.int64))


_BERT_DROPOUT = {"hidden_dropout_prob": KEPT_DROPOUT, "attention_probs_dropout_prob": KEPT_DROPOUT}
BERT_BASE: Mapping[str, Any] = _BERT_DROPOUT
MINILM: Mapping[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    **_BERT_DROPOUT,
}
DISTILBERT: Mapping[str, Any] = {"dropout": KEPT_DROPOUT, "attention_dropout": KEPT_DROPOUT}
GPT2: Mapping[str, Any] = {
    "vocab_size": 50257,
    "resid_pdrop": KEPT_DROPOUT,
    "embd_pdrop": KEPT_DROPOUT,
    "attn_pdrop": KEPT_DROPOUT,
}
LLAMA: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "max_position_embeddings": 2048,
}
T5_SMALL: Mapping[str, Any] = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "dropout_rate": KEPT_DROPOUT,
    "decoder_start_token_id": 0,
}
_IMAGE_MODELS = {
    "resnet50": "resnet50",
    "mobilenetv3-large": "mobilenetv3_large_100",
    "convnext-tiny": "convnext_tiny",
    "efficientnet-b0": "efficientnet_b0",
    "vit-small": "vit_small_patch16_224",
    "swin-tiny": "swin_tiny_patch4_window7_224",
}


def _catalogue() -> tuple[PeerModel, ...]:
    images = tuple(
        PeerModel(name, partial(_image_model, architecture), classification_loss, 4, "timm")
        for name, architecture in _IMAGE_MODELS.items()
    )
    bert = partial(_encoder, "BertModel", BERT_BASE)
    distilbert = partial(_encoder, "DistilBertModel", DISTILBERT)
    return (
        *images,
        PeerModel("bert-base", bert, square_loss, 1, "transformers"),
        PeerModel("distilbert", distilbert, square_loss, 1, "transformers"),
        PeerModel("gpt2", partial(_decoder, "GPT2LMHeadModel", GPT2), next_token_loss, 1, "transformers"),
        PeerModel("llama", partial(_decoder, "LlamaForCausalLM", LLAMA), next_token_loss, 1, "transformers"),
        PeerModel("t5-small", _t5, next_token_loss, 1, "transformers"),
        PeerModel("minilm", _sentence_encoder, mean_loss, 1, "transformers"),
    )


MODELS: Mapping[str, PeerModel] = {model.name: model for model in _catalogue()}
TRAINED = ("bert-base", "resnet50", "vit-small", "gpt2", "minilm", "mobilenetv3-large")
"""Models of which the training step is timed unless others are named."""
