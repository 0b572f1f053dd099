"""Views, copies and rearrangements.

Place: a family of the lowering table. In ONNX nothing aliases, so a view is a rearrangement and a copy is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import END, Call, normalized
from mixbackend.backends.common.onnx.conditions import literal, static
from mixbackend.backends.common.onnx.dtypes import EVERY
from mixbackend.backends.common.onnx.table import enter, lowers
from mixbackend.contracts import NodeRef, OpRule, OpView, TensorMeta, Unsupported, is_symbolic

_EVERY = OpRule(dtypes=EVERY)

enter(
    "clone alias detach lift_fresh_copy alias_copy detach_copy",
    _EVERY,
    lambda call: call.tensor("self"),
)


@lowers("_to_copy", _EVERY)
def _to_copy(call: Call) -> Value:
    return call.operand("self", call.out.dtype)


@lowers("copy", _EVERY)
def _copy(call: Call) -> Value:
    source = call.operand("src", call.out.dtype)
    if call.tensor("src").sizes == call.tensor("self").sizes:
        return source
    return call.op("Expand", source, call.build.shape(call.tensor("self")))


# --- shape -----------------------------------------------------------------------------------------------------------


@lowers("view reshape _unsafe_view _reshape_alias view_copy", _EVERY)
def _reshape(call: Call) -> Value:
    name = "size" if call.view.has_argument("size") else "shape"
    return call.reshape(call.tensor("self"), requested_sizes(call, name))


def requested_sizes(call: Call, name: str) -> list[Any]:
    """Sizes of the result: as traced where known, else the numbers that were asked for."""
    asked = call.argument(name)
    return [item if is_symbolic(size) else size for item, size in zip(asked, call.out.shape, strict=True)]


@lowers("t", _EVERY)
def _t(call: Call) -> Value:
    value = call.tensor("self")
    return value if value.rank < 2 else call.op("Transpose", value, perm=[1, 0])


@lowers("transpose.int", _EVERY)
def _transpose(call: Call) -> Value:
    value = call.tensor("self")
    if value.rank == 0:
        return value
    order = list(range(value.rank))
    first, second = call.dimension("dim0", value.rank), call.dimension("dim1", value.rank)
    order[first], order[second] = order[second], order[first]
    return call.op("Transpose", value, perm=order)


@lowers("permute", _EVERY)
def _permute(call: Call) -> Value:
    value = call.tensor("self")
    return call.op("Transpose", value, perm=list(call.dimensions("dims", value.rank))) if value.rank else value


@lowers("expand", _EVERY)
def _expand(call: Call) -> Value:
    # In ONNX a size of 1 means "keep"; torch writes -1.
    sizes = [1 if item == -1 else item for item in call.argument("size")]
    return call.op("Expand", call.tensor("self"), call.sizes(sizes))


@lowers("unsqueeze", _EVERY)
def _unsqueeze(call: Call) -> Value:
    value = call.tensor("self")
    return call.op("Unsqueeze", value, call.build.integers([normalized(call.integer("dim"), value.rank + 1)]))


@lowers("squeeze squeeze.dim squeeze.dims", _EVERY)
def _squeeze(call: Call) -> Value:
    value = call.tensor("self")
    named = call.view.has_argument("dim")
    candidates = call.dimensions("dim", value.rank) if named else range(value.rank)
    axes = [axis for axis in candidates if value.rank and value.sizes[axis] == 1]
    return call.op("Squeeze", value, call.build.integers(axes)) if axes else value


@lowers("repeat", OpRule(dtypes=EVERY))
def _repeat(call: Call) -> Value:
    value, repeats = call.tensor("self"), call.argument("repeats")
    missing = len(repeats) - value.rank
    if missing:
        value = call.op("Unsqueeze", value, call.build.integers(range(missing)))
    return call.op("Tile", value, call.sizes(repeats)) if repeats else value


@lowers("flip", _EVERY)
def _flip(call: Call) -> Value:
    value = call.tensor("self")
    axes = call.dimensions("dims", value.rank) if value.rank else ()
    if not axes:
        return value
    count = len(axes)
    starts, ends = call.build.integers([-1] * count), call.build.integers([-END] * count)
    return call.op("Slice", value, starts, ends, call.build.integers(axes), call.build.integers([-1] * count))


@lowers("roll", OpRule(dtypes=EVERY, arguments=(literal("shifts", "dims"), static("self"))))
def _roll(call: Call) -> Value:
    value = call.tensor("self")
    shifts, axes = call.argument("shifts"), call.argument("dims")
    if not axes:
        flat = _rolled(call, call.reshape(value, [-1]), 0, _product(call.static_sizes(call.out)), shifts[0])
        return call.reshape(flat, call.static_sizes(call.out))
    result = value
    for shift, axis in zip(shifts, call.dimensions("dims", value.rank), strict=True):
        result = _rolled(call, result, axis, call.static_sizes(call.out)[axis], shift)
    return result


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _rolled(call: Call, value: Value, axis: int, size: int, shift: int) -> Value:
    cut = (size - shift) % size
    return call.op("Concat", cut_out(call, value, axis, cut, END), cut_out(call, value, axis, 0, cut), axis=axis)


# --- parts -----------------------------------------------------------------------------------------------------------


def cut_out(call: Call, value: Value, axis: int, start: Any, end: Any, step: Any = 1) -> Value:
    """A slice along one axis; bounds may be computed at run time."""
    return call.op(
        "Slice", value, call.sizes([start]), call.sizes([end]), call.build.integers([axis]), call.sizes([step])
    )


@lowers("slice.Tensor", _EVERY)
def _slice(call: Call) -> Value:
    value = call.tensor("self")
    start = call.argument("start") if call.has("start") else 0
    end = call.argument("end") if call.has("end") else END
    if start == 0 and end == END and call.argument("step") == 1:
        return value
    return cut_out(call, value, call.dimension("dim", value.rank), start, end, call.argument("step"))


@lowers("select.int", _EVERY)
def _select(call: Call) -> Value:
    value = call.tensor("self")
    index = call.number(call.argument("index"), torch.int64)
    return call.op("Gather", value, index, axis=call.dimension("dim", value.rank))


@lowers("split.Tensor split_with_sizes unbind.int", OpRule(dtypes=EVERY))
def _split(call: Call) -> tuple[Value | None, ...]:
    value = call.tensor("self")
    axis = call.dimension("dim", value.rank)
    single = ".unbind" in call.view.op
    lengths: list[Any] = [1 if single else _length(call, index, axis) for index in range(len(call.view.outputs))]
    if all(isinstance(length, int) for length in lengths):
        parts = call.build.node("Split", (value, call.build.integers(lengths)), len(lengths), axis=axis)
    else:
        parts = _sliced_parts(call, value, axis, lengths)
    if not single:
        return parts
    return tuple(call.op("Squeeze", part, call.build.integers([axis])) for part in parts)


def _length(call: Call, index: int, axis: int) -> Any:
    """Length of one part: traced where known, else the argument that asks for it."""
    known = call.output(index).shape[axis]
    if not is_symbolic(known):
        return known
    if ".split_with_sizes" in call.view.op:
        return call.argument("split_sizes")[index]
    return call.argument("split_size")


def _sliced_parts(call: Call, value: Value, axis: int, lengths: list[Any]) -> tuple[Value, ...]:
    parts: list[Value] = []
    start = call.build.integers([0])
    axes = call.build.integers([axis])
    for length in lengths:
        end = call.op("Add", start, call.sizes([length]))
        parts.append(call.op("Slice", value, start, end, axes))
        start = end
    return tuple(parts)


@lowers("cat", OpRule(dtypes=EVERY))
def _cat(call: Call) -> Value:
    parts = [call.build.cast(part, call.out.dtype) for part in call.tensors("tensors") if part is not None]
    axis = call.dimension("dim", call.out.rank)
    return call.op("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]


@lowers("stack", OpRule(dtypes=EVERY))
def _stack(call: Call) -> Value:
    axis = call.dimension("dim", call.out.rank)
    axes = call.build.integers([axis])
    parts = [call.build.cast(part, call.out.dtype) for part in call.tensors("tensors") if part is not None]
    raised = [call.op("Unsqueeze", part, axes) for part in parts]
    return call.op("Concat", *raised, axis=axis) if len(raised) > 1 else raised[0]


@lowers("constant_pad_nd", OpRule(dtypes=EVERY))
def _constant_pad(call: Call) -> Value:
    value, pads = call.tensor("self"), call.argument("pad")
    count = len(pads) // 2
    before = [pads[2 * index] for index in reversed(range(count))]
    after = [pads[2 * index + 1] for index in reversed(range(count))]
    return padded(call, value, range(value.rank - count, value.rank), before, after, call.argument("value"))


def padded(
    call: Call, value: Value, axes: Sequence[int], before: Sequence[Any], after: Sequence[Any], filler: Any = 0
) -> Value:
    """Padding along some axes; widths may be computed at run time and may be negative."""
    if not axes:
        return value
    if not call.build.axes_are_inputs:
        at = {axis: index for index, axis in enumerate(axes)}
        wide = [[listed[at[axis]] if axis in at else 0 for axis in range(call.out.rank)] for listed in (before, after)]
        return call.op("Pad", value, call.sizes([*wide[0], *wide[1]]), call.number(filler, value.dtype))
    widths = call.sizes([*before, *after])
    return call.op("Pad", value, widths, call.number(filler, value.dtype), call.build.integers(axes))


# --- parts, backwards ------------------------------------------------------------------------------------------------


def _whole_steps(view: OpView) -> Unsupported | None:
    """A part that is put back must lie at a known place in a known size."""
    for name in ("dim", "start", "end", "step", "index"):
        if view.has_argument(name) and isinstance(view.argument(name), NodeRef):
            return Unsupported("dynamic-shape", f"{name} is known only at run time")
    if view.has_argument("step") and view.argument("step") != 1:
        return Unsupported("argument", f"step={view.argument('step')}, needed 1")
    dimension, meta = view.argument("dim"), view.output_tensors[0]
    assert isinstance(dimension, int)
    if is_symbolic(meta.shape[dimension]):
        return Unsupported("dynamic-shape", f"dimension {dimension} of {meta}")
    return None


_PUT_BACK = OpRule(dtypes=EVERY, arguments=(_whole_steps,))


def _bounds(call: Call, axis: int) -> tuple[int, int, int]:
    """(start, end, size) of the part along one axis, clamped as torch does."""
    size = int(call.out.shape[axis])  # type: ignore[arg-type]
    if call.view.has_argument("index"):
        start = call.integer("index") % size
        return start, start + 1, size
    start = call.integer("start") if call.has("start") else 0
    end = call.integer("end") if call.has("end") else END
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last), size


@lowers("slice_backward", _PUT_BACK)
def _slice_backward(call: Call) -> Value:
    axis = call.dimension("dim", call.out.rank)
    start, end, size = _bounds(call, axis)
    return padded(call, call.tensor("grad_output"), [axis], [start], [size - end])


@lowers("select_backward", _PUT_BACK)
def _select_backward(call: Call) -> Value:
    axis = call.dimension("dim", call.out.rank)
    start, end, size = _bounds(call, axis)
    grad = call.op("Unsqueeze", call.tensor("grad_output"), call.build.integers([axis]))
    return padded(call, grad, [axis], [start], [size - end])


@lowers("slice_scatter", _PUT_BACK)
def _slice_scatter(call: Call) -> Value:
    axis = call.dimension("dim", call.out.rank)
    return _put_into(call, call.operand("src", call.out.dtype), axis)


@lowers("select_scatter", _PUT_BACK)
def _select_scatter(call: Call) -> Value:
    axis = call.dimension("dim", call.out.rank)
    source = call.op("Unsqueeze", call.operand("src", call.out.dtype), call.build.integers([axis]))
    return _put_into(call, source, axis)


def _put_into(call: Call, source: Value, axis: int) -> Value:
    value = call.tensor("self")
    start, end, size = _bounds(call, axis)
    parts = [source]
    if start > 0:
        parts.insert(0, cut_out(call, value, axis, 0, start))
    if end < size:
        parts.append(cut_out(call, value, axis, end, size))
    return call.op("Concat", *parts, axis=axis) if len(parts) > 1 else source


@lowers("tril triu", OpRule(dtypes=EVERY, ranks=(2, 8)))
def _triangle(call: Call) -> Value:
    diagonal = call.number(call.argument("diagonal"), torch.int64)
    return call.op("Trilu", call.tensor("self"), diagonal, upper=int("triu" in call.view.op))


def _known_diagonal(view: OpView) -> Unsupported | None:
    meta = view.tensor("self")
    assert isinstance(meta, TensorMeta)
    return Unsupported("dynamic-shape", f"{meta}") if meta.dynamic else None


@lowers("diagonal", OpRule(dtypes=EVERY, arguments=(_known_diagonal, literal("offset", "dim1", "dim2"))))
def _diagonal(call: Call) -> Value:
    value = call.tensor("self")
    first, second = call.dimension("dim1", value.rank), call.dimension("dim2", value.rank)
    others = [axis for axis in range(value.rank) if axis not in (first, second)]
    front = call.op("Transpose", value, perm=[first, second, *others])
    offset, length = call.integer("offset"), int(call.out.shape[-1])  # type: ignore[arg-type]
    places = torch.arange(length)
    pairs = torch.stack([places + max(-offset, 0), places + max(offset, 0)], dim=1)
    picked = call.op("GatherND", front, call.build.constant(pairs, torch.int64))
    return call.op("Transpose", picked, perm=[*range(1, len(others) + 1), 0])
