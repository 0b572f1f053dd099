"""Binding: a model in which constant inputs become initialisers.

Place: behind ``CompiledRegion.bind``. The stored model keeps weights as inputs, so its text is small and one model
serves all layers; only here do values come in, and the runtime folds, fuses and packs them when the session opens.
Input: a model, its entrances, one tensor per constant input. Output: ``BoundModel``.
Invariants: large constants are not copied on the way in: the model refers to them as external data, each under its own
name, which the runtime is given on torch's own storage. Where the runtime keeps a constant as it is, later writes into
it are seen by some kernels and not by others: code that binds must watch and bind again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import torch

from mixbackend.backends.common.onnx.dtypes import ONNX_NUMBER
from mixbackend.backends.onnxruntime.boundary import Entrance
from mixbackend.backends.onnxruntime.exchange import in_order

_WRITTEN_BYTES = 1024
"""Constants up to this size are written into the model: the runtime reads shapes and axes only from there."""
_PACKED = {"Gemm": 1, "MatMul": 1, "Conv": 1, "ConvTranspose": 1}
"""Operators with a weight that the runtime keeps in a layout of its own, with the weight's position."""
_CARRIED = frozenset({"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Cast", "Identity"})


@dataclass(frozen=True)
class BoundModel:
    """A model ready to be opened.

    Attributes:
        serialised: its text; large constants are external.
        names, values: of the external constants, dense. The session reads them in place: they must live as long as it.
        copied_bytes: memory that the session will hold on its own: constants that had to be made dense or are packed.
        packed: how many constants the runtime packs.
    """

    serialised: bytes
    names: tuple[str, ...]
    values: tuple[torch.Tensor, ...]
    copied_bytes: int
    packed: int


def bind_model(
    serialised: bytes, entrances: Sequence[Entrance], constants: Sequence[torch.Tensor | None]
) -> BoundModel:
    """Make initialisers of the constant inputs of a model.

    Args:
        serialised: the model with every weight an input.
        entrances: of all its inputs.
        constants: one entry per input, the tensor where it is a constant.

    Raises:
        ValueError: a constant is missing, or is not what was traced.
    """
    model = onnx.ModelProto.FromString(serialised)
    graph = model.graph
    wanted = {item.name: item for item in graph.input}
    read = {name for node in graph.node for name in node.input}
    packed = _packed_names(graph)
    external: dict[str, torch.Tensor] = {}
    copied = 0
    for entrance, tensor in zip(entrances, constants, strict=True):
        if entrance.kind != "constant":
            continue
        dense = _dense(entrance, wanted.pop(entrance.name), tensor)
        if entrance.name not in read:
            continue
        if dense.nbytes <= _WRITTEN_BYTES:
            graph.initializer.append(_written(entrance, dense))
            continue
        graph.initializer.append(_referred(entrance, dense))
        external[entrance.name] = dense
        copied += dense.nbytes * ((entrance.name in packed) + (dense.data_ptr() != tensor.data_ptr()))  # type: ignore
    left = list(wanted.values())
    del graph.input[:]
    graph.input.extend(left)
    return BoundModel(
        model.SerializeToString(),
        tuple(external),
        tuple(external.values()),
        copied,
        sum(name in packed for name in external),
    )


def _dense(entrance: Entrance, declared: onnx.ValueInfoProto, tensor: torch.Tensor | None) -> torch.Tensor:
    """A constant, row-major in the model's order of axes; a copy only where it lies otherwise."""
    if tensor is None:
        raise ValueError(f"no value for the constant {entrance.name}")
    dense = in_order(tensor.detach(), entrance.order).contiguous()
    shape = [item.dim_value if item.HasField("dim_value") else None for item in declared.type.tensor_type.shape.dim]
    if dense.dtype is not entrance.dtype or len(shape) != dense.dim():
        raise ValueError(f"{entrance.name} is {dense.dtype}{tuple(dense.shape)}, traced as {entrance.dtype}{shape}")
    if any(size is not None and size != actual for size, actual in zip(shape, dense.shape, strict=True)):
        raise ValueError(f"{entrance.name} has shape {tuple(dense.shape)}, traced as {shape}")
    return dense


def _written(entrance: Entrance, dense: torch.Tensor) -> onnx.TensorProto:
    raw = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return onnx.TensorProto(
        name=entrance.name, data_type=ONNX_NUMBER[entrance.dtype], dims=list(dense.shape), raw_data=raw
    )


def _referred(entrance: Entrance, dense: torch.Tensor) -> onnx.TensorProto:
    proto = onnx.TensorProto(
        name=entrance.name,
        data_type=ONNX_NUMBER[entrance.dtype],
        dims=list(dense.shape),
        data_location=onnx.TensorProto.EXTERNAL,
    )
    # The location is never opened: the runtime is given the values before it reads the model.
    for key, value in (("location", entrance.name), ("offset", "0"), ("length", str(dense.nbytes))):
        proto.external_data.add(key=key, value=value)
    return proto


def _packed_names(graph: onnx.GraphProto) -> frozenset[str]:
    """Inputs that the runtime packs: weights of products and convolutions, also behind a change of shape or order."""
    origin: dict[str, str] = {}
    found: set[str] = set()
    for node in graph.node:
        if node.op_type in _CARRIED:
            origin[node.output[0]] = origin.get(node.input[0], node.input[0])
        place = _PACKED.get(node.op_type)
        if place is not None:
            found.add(origin.get(node.input[place], node.input[place]))
    return frozenset(found)
