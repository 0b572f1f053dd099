"""The models that are packaged: ten of the suite, two of them with symbolic sizes.

Place: read by ``worker`` and ``measure``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.benchmarks.models.entry import Loaded
from mixbackend.benchmarks.models.registry import find


@dataclass(frozen=True)
class Case:
    """A model.

    Attributes:
        model: its name in the suite.
        kind: in a word, for the table.
        dynamic: dimensions of every tensor input that are symbolic.
    """

    model: str
    kind: str
    dynamic: tuple[int, ...] = ()

    def load(self) -> Loaded:
        """Module and its inputs."""
        return find(self.model).load(train=False, device="cpu")

    def program(self) -> tuple[torch.export.ExportedProgram, Loaded]:
        """The program, and what it was made of."""
        module, args, kwargs = loaded = self.load()
        shapes = None
        if self.dynamic:
            shapes = tuple(map(self._shape, (*args, *kwargs.values())))
        with torch.no_grad():
            return torch.export.export(module, tuple(args), dict(kwargs), dynamic_shapes=shapes), loaded

    def _shape(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {place: torch.export.Dim.DYNAMIC for place in self.dynamic if place < value.dim()}
        if isinstance(value, Mapping):
            return {key: self._shape(item) for key, item in value.items()}
        return None


CASES = (
    Case("hf_Bert", "encoder, any batch", (0,)),
    Case("DistilBertForMaskedLM", "encoder"),
    Case("hf_GPT2", "decoder"),
    Case("T5Small", "encoder and decoder"),
    Case("yolov3", "detection"),
    Case("resnet50", "convolutions, any batch", (0,)),
    Case("mobilenet_v2", "convolutions"),
    Case("vit_base_patch16_224", "vision transformer"),
    Case("swin_base_patch4_window7_224", "windows"),
    Case("pytorch_unet", "segmentation"),
)


def case_of(model: str) -> Case:
    """The case of a model."""
    return next(case for case in CASES if case.model == model)
