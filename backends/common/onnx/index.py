"""Reading and writing by index.

Place: a family of the lowering table. Advanced indexing follows torch: indices broadcast together, their dimensions
stand where the first index stood, or in front if the indices are not neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.conditions import literal, rank_of
from mixbackend.backends.common.onnx.dtypes import EVERY, REALS, WHOLES
from mixbackend.backends.common.onnx.shape import cut_out
from mixbackend.backends.common.onnx.table import lowers
from mixbackend.contracts import NodeRef, OpRule, OpView, TensorMeta, Unsupported, is_symbolic

_EVERY = OpRule(dtypes=EVERY)
_SHAPED = OpRule(dtypes=EVERY, ranks=(0, 8), arguments=(rank_of("self", 1, 8),))


@lowers("embedding", _EVERY)
def _embedding(call: Call) -> Value:
    return call.op("Gather", call.tensor("weight"), call.operand("indices", torch.int64), axis=0)


def _plain_embedding(view: OpView) -> Unsupported | None:
    if view.argument("scale_grad_by_freq"):
        return Unsupported("argument", "scale_grad_by_freq")
    if view.output_tensors[0].dynamic:
        return Unsupported("dynamic-shape", f"{view.output_tensors[0]}")
    return None


@lowers(
    "embedding_dense_backward",
    OpRule(dtypes=REALS | WHOLES, arguments=(_plain_embedding, literal("num_weights", "padding_idx"))),
)
def _embedding_backward(call: Call) -> Value:
    dtype = torch.float64 if call.out.dtype is torch.float64 else torch.float32
    sizes = call.out.shape
    width = sizes[-1]
    grad = call.reshape(call.operand("grad_output", dtype), [-1, width])
    indices = call.reshape(call.operand("indices", torch.int64), [-1, 1])
    skipped = call.op("Equal", indices, call.build.constant(call.integer("padding_idx"), torch.int64))
    grad = call.op("Where", skipped, call.build.constant(0.0, dtype), grad)
    zeros = call.build.filled(call.sizes(sizes), 0, dtype)
    result = scatter_rows(call, zeros, indices, grad, "add")
    return call.build.cast(result, call.out.dtype)


def scatter_rows(call: Call, value: Value, rows: Value, updates: Value, reduction: str) -> Value:
    """Write or add whole rows; ``rows`` is (count, 1), ``updates`` is (count, width...).

    Goes through ``ScatterElements``, which runs in order: repeated rows are added without a race.
    """
    spread = call.op("Expand", rows, call.op("Shape", updates))
    return call.op("ScatterElements", value, spread, updates, axis=0, reduction=reduction)


@lowers("index_select", _SHAPED)
def _index_select(call: Call) -> Value:
    value = call.tensor("self")
    index = call.reshape(call.operand("index", torch.int64), [-1])
    return call.op("Gather", value, index, axis=call.dimension("dim", value.rank))


def _same_rank(view: OpView) -> Unsupported | None:
    value, index = view.tensor("self"), view.tensor("index")
    assert isinstance(value, TensorMeta) and isinstance(index, TensorMeta)
    return None if value.rank == index.rank > 0 else Unsupported("rank", f"{value} by {index}")


_ELEMENTWISE = OpRule(dtypes=EVERY, arguments=(_same_rank,))


@lowers("gather", _ELEMENTWISE)
def _gather(call: Call) -> Value:
    value = call.tensor("self")
    axis, index = call.dimension("dim", value.rank), call.operand("index", torch.int64)
    for other in range(value.rank):
        wanted = call.tensor("index").sizes[other]
        if other != axis and wanted != value.sizes[other]:
            value = cut_out(call, value, other, 0, wanted).shaped(value.sizes)
    return call.op("GatherElements", value, index, axis=axis)


def _known_index(view: OpView) -> Unsupported | None:
    index, source = view.tensor("index"), view.tensor("src") if view.has_argument("src") else None
    if source is None or index is None or index.shape == source.shape:
        return None
    return Unsupported("dynamic-shape", f"{source} by {index}") if index.dynamic or source.dynamic else None


_SCATTER = OpRule(dtypes=EVERY, arguments=(_same_rank, _known_index))


def _scatter(call: Call, updates: Value, reduction: str) -> Value:
    value, index = call.tensor("self"), call.operand("index", torch.int64)
    axis = call.dimension("dim", value.rank)
    return call.op("ScatterElements", value, index, updates, axis=axis, reduction=reduction)


def _cropped_source(call: Call) -> Value:
    source, index = call.tensor("src"), call.tensor("index")
    result = source
    for axis in range(source.rank):
        if source.sizes[axis] != index.sizes[axis]:
            result = cut_out(call, result, axis, 0, index.sizes[axis])
    return call.build.cast(result, call.out.dtype)


@lowers("scatter.src", _SCATTER)
def _scatter_source(call: Call) -> Value:
    return _scatter(call, _cropped_source(call), "none")


@lowers("scatter.value", _ELEMENTWISE)
def _scatter_value(call: Call) -> Value:
    filler = call.operand("value", call.out.dtype)
    return _scatter(call, call.op("Expand", filler, call.build.shape(call.tensor("index"))), "none")


@lowers("scatter_add", OpRule(dtypes=EVERY - {torch.bool}, arguments=(_same_rank, _known_index)))
def _scatter_add(call: Call) -> Value:
    return _scatter(call, _cropped_source(call), "add")


# --- advanced indexing -----------------------------------------------------------------------------------------------


def _integer_indices(view: OpView) -> Unsupported | None:
    given = view.argument("indices")
    assert isinstance(given, tuple)
    metas = {item.name: item.meta for item in view.inputs}
    for item in given:
        meta = metas[item.name] if isinstance(item, NodeRef) else None
        if isinstance(meta, TensorMeta) and meta.dtype in (torch.bool, torch.uint8):
            return Unsupported("data-dependent", "indexing by a mask")
    if not any(isinstance(item, NodeRef) for item in given):
        return Unsupported("argument", "no index")
    return None


class _Advanced:
    """The parts of an advanced index: which dimensions are indexed, and by what."""

    def __init__(self, call: Call) -> None:
        value, listed = call.tensor("self"), call.tensors("indices")
        self.call, self.value = call, value
        self.axes = [axis for axis, item in enumerate(listed) if item is not None]
        self.others = [axis for axis in range(value.rank) if axis not in self.axes]
        self.indices = [item for item in listed if item is not None]
        self.index_rank = max(item.rank for item in self.indices)
        neighbours = self.axes == list(range(self.axes[0], self.axes[-1] + 1))
        self.place = self.axes[0] if neighbours else 0

    def front(self) -> Value:
        """The indexed tensor with the indexed dimensions first."""
        order = [*self.axes, *self.others]
        return self.value if order == sorted(order) else self.call.op("Transpose", self.value, perm=order)

    def tuples(self) -> Value:
        """The indices as one tensor of index tuples, counted from the front."""
        call = self.call
        joined = [self._positive(item, axis) for item, axis in zip(self.indices, self.axes, strict=True)]
        if len(joined) > 1:
            total = joined[0]
            for item in joined[1:]:
                total = call.op("Add", total, item)
            shape = call.op("Shape", total)
            joined = [call.op("Expand", item, shape) for item in joined]
        last = call.build.integers([-1])
        raised = [call.op("Unsqueeze", item, last) for item in joined]
        return call.op("Concat", *raised, axis=-1) if len(raised) > 1 else raised[0]

    def _positive(self, index: Value, axis: int) -> Value:
        wide = self.call.build.cast(index, torch.int64)
        shifted = self.call.op("Add", wide, self.call.build.size(self.value, axis))
        return self.call.op(
            "Where", self.call.op("Less", wide, self.call.build.constant(0, torch.int64)), shifted, wide
        )

    def strides(self) -> list[int]:
        """Row-major strides of the indexed dimensions."""
        sizes = [self.value.sizes[axis] for axis in self.axes[1:]]
        return [math.prod(int(size) for size in sizes[position:]) for position in range(len(self.axes))]  # type: ignore[arg-type]

    def result_order(self) -> list[int]:
        """Permutation from (index dimensions, others) to torch's order."""
        index_dims, rest = (
            list(range(self.index_rank)),
            list(range(self.index_rank, self.index_rank + len(self.others))),
        )
        return [*rest[: self.place], *index_dims, *rest[self.place :]]


_ADVANCED = OpRule(dtypes=EVERY, arguments=(_integer_indices,))


@lowers("index.Tensor _unsafe_index.Tensor", _ADVANCED)
def _index(call: Call) -> Value:
    parts = _Advanced(call)
    if len(parts.axes) == 1:
        index = call.build.cast(parts.indices[0], torch.int64)
        return call.op("Gather", parts.value, index, axis=parts.axes[0])
    picked = call.op("GatherND", parts.front(), parts.tuples())
    order = parts.result_order()
    return picked if order == sorted(order) else call.op("Transpose", picked, perm=order)


def _settled_writes(view: OpView) -> Unsupported | None:
    """Repeated indices without accumulation are undefined in torch; with it they must be added in order."""
    if view.argument("accumulate") and view.output_tensors[0].dtype is torch.bool:
        return Unsupported("dtype", "accumulation of bool")
    value, indices = view.tensor("self"), view.argument("indices")
    assert isinstance(value, TensorMeta) and isinstance(indices, tuple)
    indexed = [size for size, item in zip(value.shape, indices) if isinstance(item, NodeRef)]  # noqa: B905
    if any(is_symbolic(size) for size in indexed[1:]):
        return Unsupported("dynamic-shape", f"indexed dimensions of {value}")
    return None


@lowers("index_put _unsafe_index_put", OpRule(dtypes=EVERY, arguments=(_integer_indices, _settled_writes)))
def _index_put(call: Call) -> Value:
    parts = _Advanced(call)
    tuples, front = parts.tuples(), parts.front()
    order = parts.result_order()
    target_shape = _written_shape(call, tuples, front, len(parts.axes))
    values = call.op("Expand", call.operand("values", call.out.dtype), _permuted_shape(call, target_shape, order))
    if order != sorted(order):
        values = call.op("Transpose", values, perm=[order.index(axis) for axis in range(len(order))])
    result = _flat_scatter(call, front, tuples, values, parts.strides())
    back = [*parts.axes, *parts.others]
    if back == sorted(back):
        return result
    return call.op("Transpose", result, perm=[back.index(axis) for axis in range(len(back))])


def _written_shape(call: Call, tuples: Value, front: Value, depth: int) -> Value:
    index_sizes = call.op("Shape", tuples, end=-1)
    return call.op("Concat", index_sizes, call.op("Shape", front, start=depth), axis=0)


def _permuted_shape(call: Call, shape: Value, order: Sequence[int]) -> Value:
    return shape if list(order) == sorted(order) else call.op("Gather", shape, call.build.integers(order), axis=0)


def _flat_scatter(call: Call, front: Value, tuples: Value, values: Value, strides: list[int]) -> Value:
    """Scatter rows of the leading dimensions, which are flattened to one with the given row-major strides."""
    depth, accumulate = len(strides), bool(call.argument("accumulate"))
    sizes = call.op("Shape", front)
    flat_index = call.op("MatMul", tuples, call.build.integers(strides))
    rows = call.op("Reshape", flat_index, call.build.integers([-1, 1]))
    width = call.op("ReduceProd", call.op("Shape", front, start=depth), keepdims=1)
    flat_shape = call.op("Concat", call.build.integers([-1]), width, axis=0)
    flat, updates = call.op("Reshape", front, flat_shape), call.op("Reshape", values, flat_shape)
    result = scatter_rows(call, flat, rows, updates, "add" if accumulate else "none")
    return call.op("Reshape", result, sizes)


def _row_index(view: OpView) -> Unsupported | None:
    index, value = view.tensor("index"), view.tensor("self")
    assert isinstance(index, TensorMeta) and isinstance(value, TensorMeta)
    if index.rank != 1 or value.rank == 0:
        return Unsupported("rank", f"{value} by {index}")
    if not isinstance(view.argument("alpha"), (int, float)):
        return Unsupported("argument", "alpha is known only at run time")
    return Unsupported("dynamic-shape", str(value)) if any(is_symbolic(size) for size in value.shape) else None


@lowers("index_add", OpRule(dtypes=EVERY - {torch.bool}, arguments=(_row_index,)))
def _index_add(call: Call) -> Value:
    value = call.tensor("self")
    axis = call.dimension("dim", value.rank)
    source = call.operand("source", value.dtype)
    if call.argument("alpha") != 1:
        source = call.op("Mul", source, call.number(call.argument("alpha"), value.dtype))
    shape = [1] * value.rank
    shape[axis] = -1
    index = call.reshape(call.operand("index", torch.int64), shape)
    spread = call.op("Expand", index, call.op("Shape", source))
    return call.op("ScatterElements", value, spread, source, axis=axis, reduction="add")
