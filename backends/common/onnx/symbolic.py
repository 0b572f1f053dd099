"""Numbers computed inside a region: sizes and arithmetic on them.

Place: beside the table; these nodes are no placed ops, so they have no rule.
Values are scalars: int64 for sizes, float64 for the rest, bool for conditions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from mixbackend.backends.common.onnx.builder import GraphBuilder, Value
from mixbackend.backends.common.onnx.errors import LoweringError

_SIZE = torch.ops.aten.sym_size.int
_ITEM = torch.ops.aten._local_scalar_dense.default
_COUNT = torch.ops.aten.sym_numel.default


def emit_number(build: GraphBuilder, node: torch.fx.Node, lookup: Callable[[torch.fx.Node], Any]) -> Value:
    """Write one node that computes a number.

    Raises:
        LoweringError: an operation that is not known.
    """
    if node.target is _SIZE:
        return _size(build, lookup(node.args[0]), int(node.args[1]))  # type: ignore[arg-type]
    if node.target is _COUNT:
        return build.op("ReduceProd", build.shape(lookup(node.args[0])), keepdims=0)  # type: ignore[arg-type]
    if node.target is _ITEM:
        return _item(build, node, lookup(node.args[0]))  # type: ignore[arg-type]
    emit = _ARITHMETIC.get(_name(node.target))
    if emit is None:
        raise LoweringError(f"a number is computed by {node.target}, which has no ONNX form here")
    return emit(build, *(_operand(build, item, lookup) for item in node.args))


def _name(target: Any) -> str:
    return getattr(target, "__name__", str(target))


def _item(build: GraphBuilder, node: torch.fx.Node, value: Value) -> Value:
    """The number in a tensor of one element."""
    scalar = build.op("Reshape", value, build.integers([]))
    if isinstance(node.meta.get("val"), (torch.SymInt, int)):
        return build.cast(scalar, torch.int64)
    return build.cast(scalar, torch.float64)


def _size(build: GraphBuilder, value: Value, dimension: int) -> Value:
    axis = dimension % len(value.sizes)
    return build.op("Squeeze", build.size(value, axis), build.integers([0]))


def _operand(build: GraphBuilder, item: Any, lookup: Callable[[torch.fx.Node], Any]) -> Value:
    if isinstance(item, torch.fx.Node):
        return lookup(item)
    if isinstance(item, bool):
        return build.constant(item, torch.bool)
    if isinstance(item, (int, float)):
        return build.constant(item, torch.int64 if isinstance(item, int) else torch.float64)
    raise LoweringError(f"{item!r} is no number")


def _common(build: GraphBuilder, left: Value, right: Value) -> tuple[Value, Value]:
    dtype = torch.float64 if torch.float64 in (left.dtype, right.dtype) else torch.int64
    return build.cast(left, dtype), build.cast(right, dtype)


def _binary(name: str) -> Callable[..., Value]:
    return lambda build, left, right: build.op(name, *_common(build, left, right))


def _floor_divide(build: GraphBuilder, left: Value, right: Value) -> Value:
    left, right = _common(build, left, right)
    if left.dtype.is_floating_point:
        return build.op("Floor", build.op("Div", left, right))
    return build.op("Div", build.op("Sub", left, build.op("Mod", left, right)), right)


def _true_divide(build: GraphBuilder, left: Value, right: Value) -> Value:
    return build.op("Div", build.cast(left, torch.float64), build.cast(right, torch.float64))


_ARITHMETIC: dict[str, Callable[..., Value]] = {
    operator.add.__name__: _binary("Add"),
    operator.sub.__name__: _binary("Sub"),
    operator.mul.__name__: _binary("Mul"),
    operator.mod.__name__: _binary("Mod"),
    operator.floordiv.__name__: _floor_divide,
    operator.truediv.__name__: _true_divide,
    operator.neg.__name__: lambda build, value: build.op("Neg", value),
    "sym_max": _binary("Max"),
    "sym_min": _binary("Min"),
    "sym_float": lambda build, value: build.cast(value, torch.float64),
    "sym_int": lambda build, value: build.cast(value, torch.int64),
    operator.lt.__name__: _binary("Less"),
    operator.le.__name__: _binary("LessOrEqual"),
    operator.gt.__name__: _binary("Greater"),
    operator.ge.__name__: _binary("GreaterOrEqual"),
    operator.eq.__name__: _binary("Equal"),
}
