"""Layer, batch and group normalisation, forward and backward.

Place: a family of the lowering table. Statistics are computed in float32 for halves, as torch does.
"""

from __future__ import annotations

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.conditions import literal, static_from
from mixbackend.backends.common.onnx.dtypes import REALS
from mixbackend.backends.common.onnx.table import lowers
from mixbackend.contracts import OpRule, OpView, TensorMeta, Unsupported, is_symbolic


def _stat_type(call: Call) -> torch.dtype:
    return torch.float64 if call.view.input_tensors[0].dtype is torch.float64 else torch.float32


def _per_channel(call: Call, value: Value, rank: int) -> Value:
    """A vector over channels, shaped to broadcast over ``(batch, channel, ...)``."""
    return call.reshape(value, [1, -1] + [1] * (rank - 2))


def _times_weight(call: Call, grad: Value, stat: torch.dtype, rank: int) -> Value:
    """A gradient times the per-channel weight, if there is one."""
    if not call.has("weight"):
        return grad
    return call.op("Mul", grad, _per_channel(call, call.operand("weight", stat), rank))


def _centred(call: Call, value: Value, axes: Value) -> tuple[Value, Value, Value]:
    """(difference from the mean, mean, variance), reduced dimensions kept."""
    mean = call.op("ReduceMean", value, axes, keepdims=1)
    difference = call.op("Sub", value, mean)
    return difference, mean, call.op("ReduceMean", call.op("Mul", difference, difference), axes, keepdims=1)


def _inverse_root(call: Call, variance: Value, epsilon: float) -> Value:
    shifted = call.op("Add", variance, call.build.constant(epsilon, variance.dtype))
    return call.op("Reciprocal", call.op("Sqrt", shifted))


# --- layer -----------------------------------------------------------------------------------------------------------


def _plain_layer(view: OpView) -> Unsupported | None:
    sizes = view.argument("normalized_shape")
    assert isinstance(sizes, tuple)
    if not all(isinstance(size, int) for size in sizes):
        return Unsupported("dynamic-shape", "normalized_shape is known only at run time")
    return None


@lowers("native_layer_norm", OpRule(dtypes=REALS, ranks=(1, 8), arguments=(_plain_layer, literal("eps"))))
def _layer_norm(call: Call) -> tuple[Value | None, ...]:
    value, sizes = call.tensor("input"), call.argument("normalized_shape")
    axis = value.rank - len(sizes)
    stat = _stat_type(call)
    if stat is torch.float64:
        return _exact_layer_norm(call, value, axis)
    weight = call.optional("weight") or call.build.constant(torch.ones(sizes), value.dtype)
    bias = call.optional("bias")
    dtype = value.dtype if weight.dtype is value.dtype else stat
    inputs = [None if item is None else call.build.cast(item, dtype) for item in (value, weight, bias)]
    result = call.op("LayerNormalization", *inputs, axis=axis, epsilon=float(call.argument("eps")))
    mean = spread = None
    if call.used & {1, 2}:
        axes = call.build.integers(range(axis, value.rank))
        _, mean, variance = _centred(call, call.build.cast(value, stat), axes)
        spread = _inverse_root(call, variance, float(call.argument("eps")))
        mean, spread = call.build.cast(mean, call.output(1).dtype), call.build.cast(spread, call.output(2).dtype)
    return call.build.cast(result, call.output(0).dtype), mean, spread


def _exact_layer_norm(call: Call, value: Value, axis: int) -> tuple[Value | None, ...]:
    """In float64: the operator's epsilon is a float32."""
    difference, mean, variance = _centred(call, value, call.build.integers(range(axis, value.rank)))
    spread = _inverse_root(call, variance, float(call.argument("eps")))
    result = call.op("Mul", difference, spread)
    if call.has("weight"):
        result = call.op("Mul", result, call.tensor("weight"))
    return (call.op("Add", result, call.tensor("bias")) if call.has("bias") else result), mean, spread


@lowers("native_layer_norm_backward", OpRule(dtypes=REALS, ranks=(1, 8), arguments=(_plain_layer,)))
def _layer_norm_backward(call: Call) -> tuple[Value | None, ...]:
    stat = _stat_type(call)
    grad, value, mean, spread = (call.operand(name, stat) for name in ("grad_out", "input", "mean", "rstd"))
    rank = call.tensor("input").rank
    outer = rank - len(call.argument("normalized_shape"))
    inner = call.build.integers(range(outer, rank))
    unit = call.op("Mul", call.op("Sub", value, mean), spread)
    wants = call.argument("output_mask")
    grad_input = grad_weight = grad_bias = None
    if wants[0]:
        scaled = call.op("Mul", grad, call.operand("weight", stat)) if call.has("weight") else grad
        grad_input = _through_statistics(call, scaled, unit, spread, inner)
    leading = call.build.integers(range(outer)) if outer else None
    if wants[1]:
        product = call.op("Mul", grad, unit)
        grad_weight = call.op("ReduceSum", product, leading, keepdims=0) if leading else product
    if wants[2]:
        grad_bias = call.op("ReduceSum", grad, leading, keepdims=0) if leading else grad
    return _as_outputs(call, grad_input, grad_weight, grad_bias)


def _through_statistics(call: Call, grad: Value, unit: Value, spread: Value, axes: Value) -> Value:
    """Gradient of a normalised value with respect to its input, statistics included."""
    mean = call.op("ReduceMean", grad, axes, keepdims=1)
    projection = call.op("ReduceMean", call.op("Mul", grad, unit), axes, keepdims=1)
    return call.op("Mul", spread, call.op("Sub", call.op("Sub", grad, mean), call.op("Mul", unit, projection)))


def _as_outputs(call: Call, *values: Value | None) -> tuple[Value | None, ...]:
    results: list[Value | None] = []
    for index, value in enumerate(values):
        meta = call.view.outputs[index]
        results.append(
            None if value is None or not isinstance(meta, TensorMeta) else call.build.cast(value, meta.dtype)
        )
    return tuple(results)


# --- batch -----------------------------------------------------------------------------------------------------------


def _known_channels(view: OpView) -> Unsupported | None:
    meta = view.tensor("input")
    if meta is not None and (meta.rank < 2 or is_symbolic(meta.shape[1])):
        return Unsupported("dynamic-shape", f"channels of {meta}")
    return None


def _channels(call: Call) -> int:
    return int(call.tensor("input").sizes[1])  # type: ignore[arg-type]


def _affine(call: Call, unit: Value, rank: int, stat: torch.dtype) -> Value:
    if call.has("weight"):
        unit = call.op("Mul", unit, _per_channel(call, call.operand("weight", stat), rank))
    if call.has("bias"):
        unit = call.op("Add", unit, _per_channel(call, call.operand("bias", stat), rank))
    return unit


def _settled(view: OpView) -> Unsupported | None:
    """``native_batch_norm`` writes its running statistics while training, without saying so."""
    if view.has_argument("training") and view.argument("training") is not False:
        return Unsupported("effect", "updates its running statistics")
    return None


@lowers(
    "_native_batch_norm_legit_no_training native_batch_norm",
    OpRule(dtypes=REALS, arguments=(_known_channels, literal("eps"), _settled)),
)
def _batch_norm_inference(call: Call) -> tuple[Value | None, ...]:
    value, channels, stat = call.tensor("input"), _channels(call), _stat_type(call)
    empty = call.build.constant(torch.zeros(0), call.output(1).dtype)
    if stat is torch.float64:
        return _from_running(call, value, stat), empty, empty
    weight = call.optional("weight") or call.build.constant(torch.ones(channels), stat)
    bias = call.optional("bias") or call.build.constant(torch.zeros(channels), stat)
    mean, variance = call.tensor("running_mean"), call.tensor("running_var")
    dtype = value.dtype if {weight.dtype, bias.dtype, mean.dtype, variance.dtype} == {value.dtype} else stat
    ready = [call.build.cast(item, dtype) for item in (value, weight, bias, mean, variance)]
    result = call.op("BatchNormalization", *ready, epsilon=float(call.argument("eps")))
    return call.build.cast(result, value.dtype), empty, empty


def _from_running(call: Call, value: Value, stat: torch.dtype) -> Value:
    """Normalised with the running statistics, in a given type."""
    rank = call.tensor("input").rank
    spread = _inverse_root(call, call.operand("running_var", stat), float(call.argument("eps")))
    unit = call.op("Sub", value, _per_channel(call, call.operand("running_mean", stat), rank))
    return _affine(call, call.op("Mul", unit, _per_channel(call, spread, rank)), rank, stat)


@lowers(
    "_native_batch_norm_legit_functional",
    OpRule(dtypes=REALS, arguments=(_known_channels, literal("eps", "momentum", "training"))),
)
def _batch_norm_functional(call: Call) -> tuple[Value | None, ...]:
    stat, rank = _stat_type(call), call.tensor("input").rank
    value = call.operand("input", stat).shaped(call.tensor("input").sizes)
    running = [call.operand(name, stat) for name in ("running_mean", "running_var")]
    epsilon = float(call.argument("eps"))
    if not call.argument("training"):
        empty = call.build.constant(torch.zeros(0), stat)
        return _as_outputs(call, _from_running(call, value, stat), empty, empty, *running)
    unit, mean, variance, spread = _batch_statistics(call, value, rank, epsilon)
    momentum = float(call.argument("momentum"))
    count = call.count(value, (0, *range(2, rank)), stat)
    one = call.build.constant(1.0, stat)
    unbiased = call.op("Mul", variance, call.op("Div", count, call.op("Sub", count, one)))
    fresh = [_blend(call, old, new, momentum) for old, new in zip(running, (mean, unbiased), strict=True)]
    return _as_outputs(call, _affine(call, unit, rank, stat), mean, spread, *fresh)


@lowers("_native_batch_norm_legit.no_stats", OpRule(dtypes=REALS, arguments=(_known_channels, literal("eps"))))
def _batch_norm_without_stats(call: Call) -> tuple[Value | None, ...]:
    stat, rank = _stat_type(call), call.tensor("input").rank
    value = call.operand("input", stat).shaped(call.tensor("input").sizes)
    unit, mean, _, spread = _batch_statistics(call, value, rank, float(call.argument("eps")))
    return _as_outputs(call, _affine(call, unit, rank, stat), mean, spread)


def _batch_statistics(call: Call, value: Value, rank: int, epsilon: float) -> tuple[Value, Value, Value, Value]:
    """(normalised value, mean, variance, inverse deviation); all but the first are vectors over channels."""
    axes = call.build.integers([0, *range(2, rank)])
    difference, mean, variance = _centred(call, value, axes)
    spread = _inverse_root(call, variance, epsilon)
    flat = [call.reshape(item, [-1]) for item in (mean, variance, spread)]
    return call.op("Mul", difference, spread), flat[0], flat[1], flat[2]


def _blend(call: Call, old: Value, new: Value, momentum: float) -> Value:
    kept = call.op("Mul", old, call.build.constant(1.0 - momentum, old.dtype))
    return call.op("Add", kept, call.op("Mul", new, call.build.constant(momentum, new.dtype)))


@lowers(
    "native_batch_norm_backward",
    OpRule(dtypes=REALS, arguments=(_known_channels, literal("eps", "train", "output_mask"))),
)
def _batch_norm_backward(call: Call) -> tuple[Value | None, ...]:
    stat, rank = _stat_type(call), call.tensor("input").rank
    grad, value = call.operand("grad_out", stat), call.operand("input", stat)
    trained = call.argument("train")
    if trained:
        mean, spread = call.operand("save_mean", stat), call.operand("save_invstd", stat)
    else:
        mean = call.operand("running_mean", stat)
        spread = _inverse_root(call, call.operand("running_var", stat), float(call.argument("eps")))
    mean, spread = _per_channel(call, mean, rank), _per_channel(call, spread, rank)
    axes = call.build.integers([0, *range(2, rank)])
    unit = call.op("Mul", call.op("Sub", value, mean), spread)
    wants = call.argument("output_mask")
    grad_input = grad_weight = grad_bias = None
    if wants[0]:
        scaled = _times_weight(call, grad, stat, rank)
        grad_input = (
            _through_statistics(call, scaled, unit, spread, axes) if trained else call.op("Mul", scaled, spread)
        )
    if wants[1]:
        grad_weight = call.op("ReduceSum", call.op("Mul", grad, unit), axes, keepdims=0)
    if wants[2]:
        grad_bias = call.op("ReduceSum", grad, axes, keepdims=0)
    return _as_outputs(call, grad_input, grad_weight, grad_bias)


# --- group -----------------------------------------------------------------------------------------------------------

_GROUP = OpRule(dtypes=REALS, arguments=(_known_channels, literal("eps", "group", "C"), static_from("input", 1)))


@lowers("native_group_norm", _GROUP)
def _group_norm(call: Call) -> tuple[Value | None, ...]:
    stat, source = _stat_type(call), call.tensor("input")
    groups = call.integer("group")
    grouped = call.reshape(call.build.cast(source, stat), [-1, groups, _group_size(call, groups)])
    difference, mean, variance = _centred(call, grouped, call.build.integers([2]))
    spread = _inverse_root(call, variance, float(call.argument("eps")))
    unit = call.op("Reshape", call.op("Mul", difference, spread), call.build.shape(source))
    result = _affine(call, unit, source.rank, stat)
    return _as_outputs(call, result, call.reshape(mean, [-1, groups]), call.reshape(spread, [-1, groups]))


def _group_size(call: Call, groups: int) -> int:
    total = 1
    for size in call.tensor("input").sizes[1:]:
        total *= int(size)  # type: ignore[arg-type]
    return total // groups


@lowers("native_group_norm_backward", _GROUP)
def _group_norm_backward(call: Call) -> tuple[Value | None, ...]:
    stat, source = _stat_type(call), call.tensor("input")
    groups, rank = call.integer("group"), source.rank
    grad = call.operand("grad_out", stat)
    grouped = [-1, groups, _group_size(call, groups)]
    mean, spread = (call.reshape(call.operand(name, stat), [-1, groups, 1]) for name in ("mean", "rstd"))
    wide = call.reshape(call.build.cast(source, stat), grouped)
    unit = call.op("Mul", call.op("Sub", wide, mean), spread)
    wants = call.argument("output_mask")
    grad_input = grad_weight = grad_bias = None
    if wants[0]:
        scaled = _times_weight(call, grad, stat, rank)
        inner = _through_statistics(call, call.reshape(scaled, grouped), unit, spread, call.build.integers([2]))
        grad_input = call.op("Reshape", inner, call.build.shape(source))
    axes = call.build.integers([0, *range(2, rank)])
    if wants[1]:
        product = call.op("Mul", grad, call.op("Reshape", unit, call.build.shape(source)))
        grad_weight = call.op("ReduceSum", product, axes, keepdims=0)
    if wants[2]:
        grad_bias = call.op("ReduceSum", grad, axes, keepdims=0)
    return _as_outputs(call, grad_input, grad_weight, grad_bias)
