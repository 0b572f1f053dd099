"""Models of the suite as cases of the comparison with peers, at the suite's own sizes.

Place: beside ``models``, which has the twelve at true size; ``find_model`` knows both.
Input: ``suite:NAME``. Output: a ``PeerModel`` with a module that takes its tensors by position and returns what the
model returns.
The choice of 24 has eight of each family, of different kinds: encoders, decoders, both at once, attention with relative
positions and bottlenecks, speech; convolutional networks old and new, depthwise, grouped, dense, in both directions,
without norms; attention on images, whole and in windows; recurrence, recommendation, a scientific kernel. All are
deterministic; the first eight train.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from mixbackend.benchmarks.models.entry import Entry
from mixbackend.benchmarks.models.registry import find
from mixbackend.benchmarks.peers.models import MODELS, Inputs, PeerModel
from mixbackend.benchmarks.peers.request import OWN_BATCH

PREFIX = "suite:"

CHOICE = (
    "resnet18",
    "DistilBertForMaskedLM",
    "vit_base_patch16_224",
    "GPT2ForSequenceClassification",
    "convnext_base",
    "T5Small",
    "tf_efficientnet_b0",
    "pytorch_unet",
    "DebertaV2ForMaskedLM",
    "Llama-3.2",
    "MobileBertForMaskedLM",
    "XLNetLMHeadModel",
    "whisper-tiny",
    "ghostnet_100",
    "mixer_b16_224",
    "nfnet_l0",
    "res2net50_14w_8s",
    "swin_base_patch4_window7_224",
    "densenet121",
    "dcgan",
    "nvidia_deeprecommender",
    "speech_transformer",
    "tts_angular",
    "pyhpc_equation_of_state",
)
"""Names in the suite, in the order in which ``--suite N`` takes them."""

TRAINED = CHOICE[:8]
"""Those of the choice of which the training step is timed."""


class ByPosition(nn.Module):
    """A model of the suite that takes all its tensors by position.

    Args:
        module: the model.
        positional: how many tensors it takes by position.
        keywords: names of the others, in order.
    """

    def __init__(self, module: nn.Module, positional: int, keywords: tuple[str, ...]) -> None:
        super().__init__()
        self.module = module
        self.positional = positional
        self.keywords = keywords

    def forward(self, *tensors: Tensor) -> Any:
        named = {name: tensors[self.positional + place] for place, name in enumerate(self.keywords)}
        return self.module(*tensors[: self.positional], **named)


def is_of_suite(name: str) -> bool:
    """Whether a case's model is one of the suite."""
    return name.startswith(PREFIX)


def find_model(name: str) -> PeerModel:
    """A model of the comparison by its name.

    Raises:
        KeyError: there is none; the message says which.
    """
    if not is_of_suite(name):
        if name not in MODELS:
            raise KeyError(f"no model is called {name!r}")
        return MODELS[name]
    entry = find(name.removeprefix(PREFIX))
    return PeerModel(name, partial(_make, entry), _loss_of(entry), OWN_BATCH, entry.origin)


def _make(entry: Entry, batch: int) -> tuple[nn.Module, Inputs]:
    """The entry's module and inputs; its batch is its own."""
    module, args, kwargs = entry.make()
    inputs = (*args, *kwargs.values())
    others = [type(value).__name__ for value in inputs if not isinstance(value, Tensor)]
    if others:
        raise ValueError(f"{entry.name} takes other things than tensors ({', '.join(others)}) and cannot be compared")
    return ByPosition(module, len(args), tuple(kwargs)), inputs


def _loss_of(entry: Entry) -> Any:
    def loss(output: Any, inputs: Inputs) -> Tensor:
        return entry.loss(output)

    return loss
