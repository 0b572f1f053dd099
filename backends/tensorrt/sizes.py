"""Symbolic sizes that come into a region as numbers, read off the tensors that come in with them.

Place: under ``model`` and ``support``. Input: an expression over symbols, the region's inputs. Output: ONNX nodes.
Engines take shapes from tensors; a number handed over would have to lie in the processor's memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import onnx
import sympy
from onnx import helper

from mixbackend.backends.common.onnx import LoweringError, stored_order
from mixbackend.contracts import RegionInput, SymbolicSize, TensorMeta

_INT64 = 7
_OPERATORS = {"Add": "Add", "Mul": "Mul", "FloorDiv": "Div", "CleanDiv": "Div", "Mod": "Mod", "PythonMod": "Mod"}
"""By name of sympy's and torch's functions; sizes are not negative, so quotients round alike."""


def writable(expression: sympy.Expr) -> bool:
    """Whether an expression can be written as nodes, where its symbols are shown."""
    if expression.is_Symbol or expression.is_Integer:
        return True
    return type(expression).__name__ in _OPERATORS and all(writable(part) for part in expression.args)


def shown_by(expression: sympy.Expr, inputs: Sequence[RegionInput]) -> tuple[int, int] | None:
    """The input and the axis that have a symbolic size; ``None`` if none has."""
    for place, item in enumerate(inputs):
        shape = item.meta.shape if isinstance(item.meta, TensorMeta) else ()
        for axis, size in enumerate(shape):
            if isinstance(size, SymbolicSize) and size.expression == expression:
                return place, axis
    return None


def size_nodes(
    expression: sympy.Expr, name: str, inputs: Sequence[RegionInput], names: Sequence[str]
) -> list[onnx.NodeProto]:
    """Nodes that compute a size under a name.

    Args:
        expression: over symbols.
        name: of the result; other results have names that begin with it.
        inputs, names: of the region, and what the model calls them.

    Raises:
        LoweringError: no tensor shows one of its symbols, or it holds an operation that has no form here.
    """
    fresh = (f"{name}_{number}" for number in itertools.count())
    nodes: list[onnx.NodeProto] = []
    result = _write(expression, inputs, names, nodes, fresh)
    nodes.append(helper.make_node("Identity", [result], [name]))
    return nodes


def _write(
    expression: sympy.Expr,
    inputs: Sequence[RegionInput],
    names: Sequence[str],
    nodes: list[onnx.NodeProto],
    fresh: Iterator[str],
) -> str:
    found = shown_by(expression, inputs)
    if found is not None:
        place, axis = found
        order = stored_order(inputs[place])
        axis = axis if order is None else order.index(axis)
        sizes, result = next(fresh), next(fresh)
        nodes.append(helper.make_node("Shape", [names[place]], [sizes]))
        nodes.append(helper.make_node("Gather", [sizes, _literal(axis, nodes, fresh)], [result], axis=0))
        return result
    if expression.is_Integer:
        return _literal(int(expression), nodes, fresh)
    operator = _OPERATORS.get(type(expression).__name__)
    if operator is None:
        raise LoweringError(f"the size {expression} enters as a number, and no tensor that enters shows it")
    parts = [_write(part, inputs, names, nodes, fresh) for part in expression.args]
    result = parts[0]
    for part in parts[1:]:
        joined = next(fresh)
        nodes.append(helper.make_node(operator, [result, part], [joined]))
        result = joined
    return result


def _literal(number: int, nodes: list[onnx.NodeProto], fresh: Iterator[str]) -> str:
    name = next(fresh)
    nodes.append(helper.make_node("Constant", [], [name], value=helper.make_tensor("value", _INT64, (), [number])))
    return name
