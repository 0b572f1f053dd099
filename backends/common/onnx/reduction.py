"""Reductions and scans.

Place: a family of the lowering table. Sums of integers are taken in the type of the result, as torch does.
"""

from __future__ import annotations

import math

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.conditions import floating_output, literal
from mixbackend.backends.common.onnx.dtypes import COUNTS, EVERY, NUMBERS, REALS
from mixbackend.backends.common.onnx.table import lowers
from mixbackend.contracts import OpRule, OpView, Unsupported


def reduced_dimensions(call: Call, rank: int) -> tuple[int, ...]:
    """The dimensions a reduction runs over; all of them where none are named."""
    arguments = dict(call.view.node.arguments)
    listed = arguments.get("dim")
    if listed is None or listed == ():
        return tuple(range(rank))
    return call.dimensions("dim", rank)


def keepdims(call: Call) -> int:
    """Whether reduced dimensions stay with size one."""
    return int(bool(dict(call.view.node.arguments).get("keepdim", False)))


def reduce_over(call: Call, operator: str, value: Value, dimensions: tuple[int, ...], keep: int) -> Value:
    """One ONNX reduction; a scalar is its own reduction."""
    if not dimensions:
        return call.op("Identity", value)
    return call.op(operator, value, call.build.integers(dimensions), keepdims=keep)


def _reduce(call: Call, operator: str, value: Value) -> Value:
    rank = call.tensor("self").rank
    dimensions = reduced_dimensions(call, rank) if rank else ()
    return reduce_over(call, operator, value, dimensions, keepdims(call))


@lowers("sum sum.dim_IntList", OpRule(dtypes=EVERY))
def _sum(call: Call) -> Value:
    source = call.tensor("self")
    summed = call.operand("self", call.out.dtype)
    if source.dtype in COUNTS and not call.out.dtype.is_floating_point and source.rank:
        return _exact_sum(call, summed, reduced_dimensions(call, source.rank))
    return _reduce(call, "ReduceSum", summed)


def _exact_sum(call: Call, value: Value, dimensions: tuple[int, ...]) -> Value:
    """A sum of integers that may not fit into a float64's mantissa, in which runtimes sum."""
    last = call.build.integers([-1])
    for axis in dimensions:
        running = call.op("CumSum", value, call.build.constant(axis, torch.int64))
        value = call.op("Gather", running, last, axis=axis)
    return value if keepdims(call) else call.op("Squeeze", value, call.build.integers(dimensions))


@lowers("mean mean.dim", OpRule(dtypes=REALS))
def _mean(call: Call) -> Value:
    return _reduce(call, "ReduceMean", call.operand("self", call.out.dtype))


@lowers("prod prod.dim_int", OpRule(dtypes=REALS))
def _prod(call: Call) -> Value:
    return _reduce(call, "ReduceProd", call.operand("self", call.out.dtype))


def _extreme(call: Call, value: Value, largest: bool, dimensions: tuple[int, ...], keep: int) -> Value:
    """The largest or smallest value, NaN where there is one: by themselves runtimes pass over NaNs, or worse."""
    best = reduce_over(call, "ReduceMax" if largest else "ReduceMin", value, dimensions, keep)
    if not value.dtype.is_floating_point or not dimensions:
        return best
    odd = reduce_over(call, "ReduceMax", _odd(call, value), dimensions, keep)
    return call.op("Where", call.build.cast(odd, torch.bool), call.build.constant(math.nan, value.dtype), best)


def _odd(call: Call, value: Value) -> Value:
    """One where a value is NaN, and zero elsewhere, in types that reductions have kernels for."""
    return call.build.cast(call.op("IsNaN", value), torch.float32)


def _place_of_extreme(call: Call, value: Value, largest: bool, axis: int, keep: int) -> Value:
    """Where the largest or smallest value stands: the first NaN, if there is one."""
    best = call.op("ArgMax" if largest else "ArgMin", value, axis=axis, keepdims=keep)
    if not value.dtype.is_floating_point:
        return best
    odd = _odd(call, value)
    some = call.build.cast(reduce_over(call, "ReduceMax", odd, (axis,), keep), torch.bool)
    return call.op("Where", some, call.op("ArgMax", odd, axis=axis, keepdims=keep), best)


@lowers("amax amin max min", OpRule(dtypes=EVERY))
def _extremum(call: Call) -> Value:
    value = call.tensor("self")
    dimensions = reduced_dimensions(call, value.rank) if value.rank else ()
    return _extreme(call, value, "max" in call.view.op, dimensions, keepdims(call))


@lowers("any any.dim any.dims all all.dim all.dims", OpRule(dtypes=EVERY))
def _quantified(call: Call) -> Value:
    operator = "ReduceMax" if ".any" in call.view.op else "ReduceMin"
    return call.build.cast(_reduce(call, operator, call.operand("self", torch.bool)), call.out.dtype)


def _not_scalar(view: OpView) -> Unsupported | None:
    meta = view.tensor("self")
    return Unsupported("rank", "a scalar tensor") if meta is not None and meta.rank == 0 else None


@lowers("max.dim min.dim", OpRule(dtypes=NUMBERS, arguments=(_not_scalar,)))
def _extremum_with_index(call: Call) -> tuple[Value, Value | None]:
    value, keep = call.tensor("self"), keepdims(call)
    dimension, largest = call.dimension("dim", value.rank), ".max." in call.view.op
    best = _extreme(call, value, largest, (dimension,), keep)
    return best, _place_of_extreme(call, value, largest, dimension, keep) if 1 in call.used else None


@lowers("argmax argmin", OpRule(dtypes=NUMBERS, arguments=(_not_scalar,)))
def _argument_of_extremum(call: Call) -> Value:
    value, largest = call.tensor("self"), "argmax" in call.view.op
    if call.has("dim"):
        return _place_of_extreme(call, value, largest, call.dimension("dim", value.rank), keepdims(call))
    flat = _place_of_extreme(call, call.reshape(value, [-1]), largest, 0, 0)
    return call.reshape(flat, [1] * call.out.rank)


def _known_correction(view: OpView) -> Unsupported | None:
    correction = view.argument("correction")
    if correction is None or isinstance(correction, (int, float)):
        return None
    return Unsupported("argument", f"correction={correction}")


def _moments(call: Call) -> tuple[Value, Value]:
    """(mean, variance) of the argument, in float32 or float64."""
    dtype = torch.float64 if call.out.dtype is torch.float64 else torch.float32
    value = call.tensor("self")
    wide = call.build.cast(value, dtype).shaped(value.sizes)
    dimensions = reduced_dimensions(call, value.rank) if value.rank else ()
    centre = reduce_over(call, "ReduceMean", wide, dimensions, 1)
    difference = call.op("Sub", wide, centre)
    squares = reduce_over(call, "ReduceSum", call.op("Mul", difference, difference), dimensions, keepdims(call))
    correction = call.argument("correction")
    lost = call.build.constant(1.0 if correction is None else float(correction), dtype)
    freedom = call.op("Max", call.op("Sub", call.count(wide, dimensions, dtype), lost), call.build.constant(0.0, dtype))
    mean = reduce_over(call, "ReduceMean", wide, dimensions, keepdims(call))
    return mean, call.op("Div", squares, freedom)


@lowers("var.correction std.correction", OpRule(dtypes=REALS, arguments=(_known_correction,)))
def _var(call: Call) -> Value:
    variance = _moments(call)[1]
    return call.build.cast(call.op("Sqrt", variance) if "std" in call.view.op else variance, call.out.dtype)


@lowers("var_mean.correction std_mean.correction", OpRule(dtypes=REALS, arguments=(_known_correction,)))
def _var_mean(call: Call) -> tuple[Value, Value]:
    mean, variance = _moments(call)
    spread = call.op("Sqrt", variance) if "std" in call.view.op else variance
    return call.build.cast(spread, call.out.dtype), call.build.cast(mean, call.out.dtype)


def _known_order(view: OpView) -> Unsupported | None:
    order = view.argument("ord")
    if order in (0, 1, 2) or order == float("inf") or order == float("-inf"):
        return None
    return Unsupported("argument", f"ord={order}")


@lowers("linalg_vector_norm", OpRule(dtypes=REALS, arguments=(_known_order,)))
def _vector_norm(call: Call) -> Value:
    dtype = torch.float64 if call.out.dtype is torch.float64 else torch.float32
    value, order = call.operand("self", dtype), call.argument("ord")
    if order == 2:
        result = _reduce(call, "ReduceSum", call.op("Mul", value, value))
        return call.build.cast(call.op("Sqrt", result), call.out.dtype)
    if order == 0:
        zero = call.op("Equal", value, call.build.constant(0.0, dtype))
        result = _reduce(call, "ReduceSum", call.build.cast(call.op("Not", zero), dtype))
        return call.build.cast(result, call.out.dtype)
    size = call.op("Abs", value).shaped(value.sizes)
    if order == 1:
        return call.build.cast(_reduce(call, "ReduceSum", size), call.out.dtype)
    dimensions = reduced_dimensions(call, value.rank) if value.rank else ()
    return call.build.cast(_extreme(call, size, order > 0, dimensions, keepdims(call)), call.out.dtype)


@lowers("logsumexp", OpRule(dtypes=EVERY, arguments=(floating_output,)))
def _logsumexp(call: Call) -> Value:
    value = call.operand("self", call.out.dtype)
    best = call.op("Identity", value)
    rank = call.tensor("self").rank
    if rank:
        best = reduce_over(call, "ReduceMax", value, call.dimensions("dim", rank), 1)
    # exp(inf - inf) is NaN: infinite maxima are taken out and added back, as torch does.
    zero = call.build.constant(0.0, value.dtype)
    best = call.op("Where", call.op("IsInf", best), zero, best)
    total = _reduce(call, "ReduceSum", call.op("Exp", call.op("Sub", value, best)))
    shift = _reduce(call, "ReduceMax", best)
    return call.op("Add", call.op("Log", total), shift)


@lowers("cumsum", OpRule(dtypes=EVERY, arguments=(literal("dim"),)))
def _cumsum(call: Call) -> Value:
    value = call.tensor("self")
    summed = call.build.cast(value, call.out.dtype)
    if value.rank == 0:
        return call.op("Identity", summed)
    axis = call.build.constant(call.dimension("dim", value.rank), torch.int64)
    return call.op("CumSum", summed, axis)
