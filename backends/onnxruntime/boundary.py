"""What crosses a session's boundary: names, element types and ways in, for every input and output of a region.

Place: between a region, or the model stored for it, and the call path.
Input: a region and its model. Output: ``Entrance`` per region input, ``Exit`` per region output.
Invariants: read from the model's text alone, so nothing has to be opened for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import onnx
import torch

from mixbackend.backends.common.onnx import stored_order
from mixbackend.backends.common.onnx.dtypes import TORCH_DTYPE
from mixbackend.contracts import InputRole, Region, RegionInput, TensorMeta

Kind = Literal["weight", "constant", "tensor", "number"]


@dataclass(frozen=True, slots=True)
class Entrance:
    """One input.

    Attributes:
        name: in the model.
        dtype: element type.
        kind: ``weight`` and ``constant`` are the same tensor at (nearly) every call; a constant may be bound.
        order: axes in the order in which the model takes them, ``None`` for their own.
    """

    name: str
    dtype: torch.dtype
    kind: Kind
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """One output: its name in the model and its element type."""

    name: str
    dtype: torch.dtype


def boundary(region: Region, model: onnx.ModelProto) -> tuple[tuple[Entrance, ...], tuple[Exit, ...]]:
    """The boundary of a region's model.

    Raises:
        ValueError: the model is not one of this region.
    """
    inputs, outputs = model.graph.input, model.graph.output
    if len(inputs) != len(region.inputs):
        raise ValueError(f"the model takes {len(inputs)} inputs, the region {len(region.inputs)}")
    exits = tuple(Exit(item.name, _dtype(item)) for item in outputs)
    if [item.dtype for item in exits] != [item.meta.dtype for item in region.outputs]:
        raise ValueError("the model's outputs are not those of the region")
    entrances = tuple(
        Entrance(item.name, _dtype(item), _kind(given), stored_order(given))
        for item, given in zip(inputs, region.inputs, strict=True)
    )
    return entrances, exits


def _dtype(item: onnx.ValueInfoProto) -> torch.dtype:
    return TORCH_DTYPE[item.type.tensor_type.elem_type]


def _kind(item: RegionInput) -> Kind:
    if not isinstance(item.meta, TensorMeta):
        return "number"
    if item.role is InputRole.CONSTANT:
        return "constant"
    return "weight" if item.role.is_weight else "tensor"
