"""A region as the ONNX model that an engine is built from, and how its inputs, weights and outputs map to it.

Place: between the shared lowering and ``building``. Input: a region. Output: ``Prepared``.
Constants become initialisers, so that TensorRT may lay them out; those are named, and what happens to a weight before
its first real use (turned axes, another type) is done to its value when the engine is given it, not at each call.
Symbolic sizes that come in as numbers are read off a tensor that shows them, since engines take shapes from tensors.
Invariants: equal regions give equal bytes; the model holds no weight's value, only where it will lie in ``WEIGHTS``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx
import torch
from onnx import helper

from mixbackend.backends.common.onnx import lower_region, stored_order
from mixbackend.backends.common.onnx.dtypes import ONNX_NUMBER, TORCH_DTYPE
from mixbackend.backends.tensorrt.kernels import target
from mixbackend.backends.tensorrt.sizes import size_nodes
from mixbackend.backends.tensorrt.versions import Release
from mixbackend.contracts import InputRole, Region, RegionInput, Size, SymbolicSize, TensorMeta

WEIGHTS = "weights.bin"
"""File beside the model that holds the values of its initialisers."""
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Entrance:
    """One tensor that a call hands to the engine.

    Attributes:
        place: among the region's inputs.
        name: in the engine.
        dtype: in the engine; the region's own may be wider.
        order: axes in the order in which the engine takes them, ``None`` for their own.
        shape: sizes as the engine takes them.
        constant: whether the tensor is known when code is bound.
    """

    place: int
    name: str
    dtype: torch.dtype
    order: tuple[int, ...] | None
    shape: tuple[Size, ...]
    constant: bool


@dataclass(frozen=True, slots=True)
class Exit:
    """One result: its name in the engine, its type there, its type for torch, its sizes."""

    name: str
    dtype: torch.dtype
    wanted: torch.dtype
    shape: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """One initialiser: a constant input with its axes turned and its type changed.

    Attributes:
        name: in the engine.
        place: of the constant among the region's inputs.
        order: its axes, ``None`` for their own order.
        dtype: its type in the engine.
        shape: in the engine; 1 along an axis of equal values that its only users repeat by themselves.
        offset: in ``WEIGHTS``.
    """

    name: str
    place: int
    order: tuple[int, ...] | None
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize

    def of(self, constant: torch.Tensor) -> torch.Tensor:
        """Its values, dense and on the CPU."""
        turned = constant.detach() if self.order is None else constant.detach().permute(self.order)
        for axis, size in enumerate(self.shape):
            turned = turned.narrow(axis, 0, size)
        return turned.to(self.dtype).contiguous().cpu()


@dataclass(frozen=True)
class Prepared:
    """A region ready to be built.

    Attributes:
        model: serialised.
        entrances, exits, weights: see their classes.
        halves: whether anything in it is float16.
    """

    model: bytes
    entrances: tuple[Entrance, ...]
    exits: tuple[Exit, ...]
    weights: tuple[Weight, ...]
    halves: bool

    @property
    def digest(self) -> str:
        """Of the model: what was built for another one cannot serve this one."""
        return hashlib.sha256(self.model).hexdigest()


def prepare(region: Region, release: Release) -> Prepared:
    """Lower a region.

    Raises:
        LoweringError: an op has a form that its verdict should have refused, or a number comes in that no tensor shows.
    """
    lowered = lower_region(region, target(release))
    graph = lowered.model.graph
    names = [name for name, _ in lowered.inputs]
    known = [place for place, item in enumerate(region.inputs) if _is_known(item)]
    _read_numbers_off_tensors(graph, region.inputs, names)
    weights = _initialise(graph, region.inputs, {names[place]: place for place in known})
    left = {item.name for item in graph.input}
    entrances = tuple(
        _entrance(place, names[place], item, release)
        for place, item in enumerate(region.inputs)
        if names[place] in left
    )
    exits = tuple(
        Exit(name, _engine_type(item.meta.dtype, release), item.meta.dtype, item.meta.shape)
        for name, item in zip(lowered.outputs, region.outputs, strict=True)
    )
    model = lowered.model.SerializeToString(deterministic=True)
    return Prepared(model, entrances, exits, weights, _has_halves(region))


def _is_known(item: RegionInput) -> bool:
    """Whether an input becomes an initialiser: floating-point constants, which engines can be given anew."""
    meta = item.meta
    if not isinstance(meta, TensorMeta) or item.role is not InputRole.CONSTANT:
        return False
    return meta.dtype.is_floating_point and not meta.dynamic


def _engine_type(dtype: torch.dtype, release: Release) -> torch.dtype:
    return torch.int32 if dtype is torch.int64 and dtype not in release.types else dtype


def _entrance(place: int, name: str, item: RegionInput, release: Release) -> Entrance:
    meta, order = item.meta, stored_order(item)
    assert isinstance(meta, TensorMeta)
    shape = meta.shape if order is None else tuple(meta.shape[axis] for axis in order)
    return Entrance(
        place, name, _engine_type(meta.dtype, release), order, shape, constant=item.role is InputRole.CONSTANT
    )


def _has_halves(region: Region) -> bool:
    metas = [*(item.meta for item in region.inputs), *(meta for view in region.views for meta in view.output_tensors)]
    return any(isinstance(meta, TensorMeta) and meta.dtype is torch.float16 for meta in metas)


# --- numbers ---------------------------------------------------------------------------------------------------------


def _read_numbers_off_tensors(graph: onnx.GraphProto, inputs: Sequence[RegionInput], names: Sequence[str]) -> None:
    first: list[onnx.NodeProto] = []
    for item, name in zip(inputs, names, strict=True):
        if isinstance(item.meta, TensorMeta):
            continue
        if isinstance(item.meta, SymbolicSize):
            first += size_nodes(item.meta.expression, name, inputs, names)
        else:
            assert item.meta is not None, f"{name} is no value"
            dtype = TORCH_DTYPE[next(found for found in graph.input if found.name == name).type.tensor_type.elem_type]
            graph.initializer.append(helper.make_tensor(name, ONNX_NUMBER[dtype], (), [item.meta]))
        _drop_input(graph, name)
    nodes = [*first, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


# --- weights ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Form:
    """A constant after axes were turned and its type was changed."""

    place: int
    order: tuple[int, ...]
    dtype: torch.dtype
    repeated: frozenset[int] = frozenset()
    """Axes of the constant along which its values are there once."""


def _initialise(graph: onnx.GraphProto, inputs: Sequence[RegionInput], known: dict[str, int]) -> tuple[Weight, ...]:
    """Make initialisers of constants, in the form in which they are used first."""
    forms = {name: _first_form(inputs[place], place) for name, place in known.items()}
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        form = _carried(node, forms)
        if form is None:
            kept.append(node)
        else:
            forms[node.output[0]] = form
    used: dict[_Form, Weight] = {}
    offset = 0
    for node in kept:
        for index, name in enumerate(node.input):
            if name not in forms:
                continue
            form = _repeated_by(node, forms[name], inputs[forms[name].place], forms)
            if form not in used:
                used[form] = _weight(form, inputs[form.place], f"w{len(used)}", offset)
                offset += -(-used[form].nbytes // _ALIGNMENT) * _ALIGNMENT
            node.input[index] = used[form].name
    for name in known:
        _drop_input(graph, name)
    graph.initializer.extend(_external(weight) for weight in used.values())
    del graph.node[:]
    graph.node.extend(kept)
    return tuple(used.values())


def _first_form(item: RegionInput, place: int) -> _Form:
    assert isinstance(item.meta, TensorMeta)
    return _Form(place, stored_order(item) or tuple(range(item.meta.rank)), item.meta.dtype)


def _repeated_by(node: onnx.NodeProto, form: _Form, item: RegionInput, forms: dict[str, _Form]) -> _Form:
    """The form without what a product repeats by itself: a layer's weight may come expanded over the whole batch."""
    assert isinstance(item.meta, TensorMeta)
    if node.op_type != "MatMul" or all(name in forms for name in node.input):
        return form
    stride = item.meta.stride
    return replace(form, repeated=frozenset(axis for axis in form.order[:-2] if stride[axis] == 0))


def _carried(node: onnx.NodeProto, forms: dict[str, _Form]) -> _Form | None:
    """What a node makes of a constant if it only turns axes or changes the type."""
    form = forms.get(node.input[0]) if len(node.input) == 1 else None
    if form is None:
        return None
    if node.op_type == "Transpose":
        turned = next(item.ints for item in node.attribute if item.name == "perm")
        return _Form(form.place, tuple(form.order[axis] for axis in turned), form.dtype)
    if node.op_type == "Cast":
        dtype = TORCH_DTYPE[node.attribute[0].i]
        return _Form(form.place, form.order, dtype) if dtype.is_floating_point else None
    return None


def _weight(form: _Form, item: RegionInput, name: str, offset: int) -> Weight:
    assert isinstance(item.meta, TensorMeta)
    sizes = [int(size) for size in item.meta.shape]  # type: ignore[arg-type]
    sizes = [1 if axis in form.repeated else size for axis, size in enumerate(sizes)]
    natural = form.order == tuple(range(len(sizes)))
    order = None if natural else form.order
    return Weight(name, form.place, order, form.dtype, tuple(sizes[axis] for axis in form.order), offset)


def _external(weight: Weight) -> onnx.TensorProto:
    proto = onnx.TensorProto(
        name=weight.name,
        data_type=ONNX_NUMBER[weight.dtype],
        dims=list(weight.shape),
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", WEIGHTS), ("offset", weight.offset), ("length", weight.nbytes)):
        proto.external_data.add(key=key, value=str(value))
    return proto


def _drop_input(graph: onnx.GraphProto, name: str) -> None:
    left = [item for item in graph.input if item.name != name]
    del graph.input[:]
    graph.input.extend(left)
