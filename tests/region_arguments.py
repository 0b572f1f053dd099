"""What a traced region is called with, for any sizes of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from mixbackend.contracts import Region, SymbolicSize, TensorMeta


def arguments(region: Region, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """What a region is called with: its inputs come in the order of their use, and symbolic sizes as numbers."""
    given: list[Any] = []
    sizes: dict[sympy.Symbol, int] = {}
    for item in region.inputs:
        tensor = inputs[int(item.name[3:].partition("_")[0])] if isinstance(item.meta, TensorMeta) else None
        given.append(tensor)
        for size, actual in zip(item.meta.shape, tensor.shape, strict=True) if tensor is not None else ():
            if isinstance(size, SymbolicSize):
                sizes[size.expression] = actual
    numbers = [None if isinstance(item.meta, TensorMeta) else item.meta.expression for item in region.inputs]
    return [value if size is None else int(size.subs(sizes)) for value, size in zip(given, numbers, strict=True)]
