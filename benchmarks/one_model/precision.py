"""The number formats in which the suite runs a model: cast as a whole, or under autocast.

Place: beside ``steps``, which runs models; the worker casts, the runner asks what there is for a phase.
Rule, as upstream's: float16 and bfloat16 cast weights and inputs, for inference. ``amp`` keeps weights in float32 and
runs the forward and the loss of a training step under autocast in bfloat16, ``amp_float16`` in float16; the loss is not
scaled. The float64 reference is made of the weights before they are cast, and without autocast.
Non-goals: scaling gradients; that happens outside what is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from mixbackend.benchmarks.models.entry import Loaded
from mixbackend.benchmarks.models.trees import map_tensors
from mixbackend.benchmarks.one_model.accuracy import Phase

Precision = Literal["float32", "float16", "bfloat16", "amp", "amp_float16"]

_CASTS: Mapping[Precision, torch.dtype] = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_AUTOCASTS: Mapping[Precision, torch.dtype] = {"amp": torch.bfloat16, "amp_float16": torch.float16}
PRECISIONS: Mapping[Phase, tuple[Precision, ...]] = {
    "inference": ("float32", *_CASTS),
    "training": ("float32", *_AUTOCASTS),
}
"""What there is, by phase."""


def cast(loaded: Loaded, precision: Precision) -> Loaded:
    """Module and inputs in the precision, the module changed in place; as they are where autocast is left to choose."""
    dtype = _CASTS.get(precision)
    if dtype is None:
        return loaded
    module, args, kwargs = loaded
    args, kwargs = map_tensors(lambda value: value.to(dtype) if value.is_floating_point() else value, (args, kwargs))
    return module.to(dtype), args, kwargs


def autocast_type(precision: Precision) -> torch.dtype | None:
    """Into what autocast casts; ``None``: it is off."""
    return _AUTOCASTS.get(precision)
