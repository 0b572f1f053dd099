"""Scalar expressions as C++: every operator becomes one named value.

Place: used by the printer of statements. Input: an expression and the point it is computed at. Output: the name of its
value; the lines that compute it are in the blocks of the point.
Invariants: an expression is computed once per block. What is the same in all lanes is computed as a scalar and
broadcast where it meets a vector.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import walk
from mixbackend.backends.codegen.ir.scalar import Apply, Bindings, Constant, Expr, IndexValue, Local, Read
from mixbackend.backends.codegen.targets.cpp.literals import conversion_type, literal, wraps
from mixbackend.backends.codegen.targets.cpp.memory import Memory, read
from mixbackend.backends.codegen.targets.cpp.points import PointPrinter
from mixbackend.backends.codegen.targets.cpp.ranges import lanes_below
from mixbackend.backends.codegen.targets.cpp.scopes import Value

_PLAIN = (
    "add sub mul div floor_div trunc_div remainder fmod neg sign minimum maximum reciprocal round_float16 "
    "round_bfloat16 eq ne lt le gt ge shift_left shift_right"
).split()
_UNDERSCORE = (
    "abs sqrt rsqrt copysign exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh "
    "acosh atanh erf erfc sigmoid pow floor ceil trunc round isnan and or xor not"
).split()

FUNCTIONS: Mapping[str, str] = {
    **{name: name for name in _PLAIN},
    **{name: f"{name}_" for name in _UNDERSCORE},
    "where": "select",
    "rough_sigmoid": "sigmoid_",
    "rough_normal": "normal_",
}
"""C++ function of each scalar operator but ``to_dtype``; they take scalars and vectors alike."""

_ON_BOOL: Mapping[str, str] = {
    "minimum": "and_({0}, {1})",
    "maximum": "or_({0}, {1})",
    "eq": "not_(xor_({0}, {1}))",
    "ne": "xor_({0}, {1})",
    "lt": "and_(not_({0}), {1})",
    "le": "or_(not_({0}), {1})",
    "gt": "and_({0}, not_({1}))",
    "ge": "or_({0}, not_({1}))",
}

_LEAVES_RANGE = frozenset({"add", "sub", "mul", "neg", "abs", "floor_div", "trunc_div", "pow", "not", "shift_left"})
"""Operators with a result that, computed in 32 bits, may lie outside a small integer type."""


class ValuePrinter:
    """Prints values at the current point.

    Attributes:
        locals: values of ``Local`` names, by name and copy.
    """

    def __init__(self, point: PointPrinter, memory: Memory) -> None:
        self.point = point
        self.memory = memory
        self.locals: dict[tuple[str, int], Value] = {}

    def value(self, expression: Expr) -> Value:
        """The value of an expression at the current point."""
        done: dict[Expr, Value] = {}
        for node in walk(expression):
            done[node] = self._node(node, done)
        return done[expression]

    def bound(self, bindings: Bindings) -> dict[sympy.Symbol, Value]:
        """Values of the symbols in an offset."""
        return {symbol: self.value(value) for symbol, value in bindings}

    def _node(self, node: Expr, done: Mapping[Expr, Value]) -> Value:
        if isinstance(node, Constant):
            return Value(literal(node.value, node.dtype), node.dtype, 0)
        if isinstance(node, Local):
            return self.locals[node.name, self.point.lane.copy]
        if isinstance(node, IndexValue):
            return self._index_value(node)
        if isinstance(node, Read):
            mask = None if node.mask is None else done[node.mask]
            return read(self.point, self.memory, node, {s: done[v] for s, v in node.bindings}, mask)
        assert isinstance(node, Apply), f"{type(node).__name__} is no part of a kernel"
        return self._apply(node, [done[argument] for argument in node.arguments])

    def _index_value(self, node: IndexValue) -> Value:
        expression = node.expression
        # A floating number is its symbol alone.
        number = expression.is_Symbol and not expression.is_integer
        varying = self.point.varies(expression)
        text = self.point.lanes_text(expression) if varying else f"i64({self.point.text(expression)})"
        text = str(expression) if number else text
        if number or node.dtype != torch.int64:
            text = f"convert<{conversion_type(node.dtype)}>({text})"
        return self.point.name(node, text, node.dtype, self.point.depth(expression), varying)

    def _apply(self, node: Apply, arguments: list[Value]) -> Value:
        varying = any(argument.varying for argument in arguments)
        if node.op == "corrected":
            return self._corrected(node, arguments, varying)
        below = lanes_below(self.point, node) if varying else ""
        if below:
            text = below
        elif node.op == "to_dtype":
            text = self._conversion(node, arguments[0])
            if not text:
                return arguments[0]
        elif node.op == "where" and varying and not arguments[0].varying:
            yes, no = (self.point.broadcast(argument) for argument in arguments[1:])
            text = f"{arguments[0].text} ? {yes} : {no}"
        else:
            texts = [self.point.broadcast(item) if varying else item.text for item in arguments]
            text = _operation(node, arguments[0].dtype, texts)
        depth = max(argument.depth for argument in arguments)
        buffers = frozenset().union(*(argument.buffers for argument in arguments))
        return self.point.name(node, text, node.dtype, depth, varying, buffers)

    def _corrected(self, node: Apply, arguments: list[Value], varying: bool) -> Value:
        """Told by the kernel's ``told``, of lanes in use alone, and not where the loops around have no iterations."""
        value, given = (self.point.broadcast(item) if varying else item.text for item in arguments)
        is_partial = varying and self.point.lane.count is not None
        told = f"select({self.point.active()}, {given}, {value})" if is_partial else given
        depth = max(argument.depth for argument in arguments)
        buffers = frozenset().union(*(argument.buffers for argument in arguments))
        text = f"told.corrected({value}, {told})"
        return self.point.name(node, text, node.dtype, depth, varying, buffers, otherwise=value)

    def _conversion(self, node: Apply, argument: Value) -> str:
        """Empty if there is nothing to convert."""
        if node.dtype == argument.dtype:
            return ""
        return f"convert<{conversion_type(node.dtype)}>({argument.text})"


def _operation(node: Apply, operand: torch.dtype, arguments: list[str]) -> str:
    if operand == torch.bool and node.op in _ON_BOOL:
        return _ON_BOOL[node.op].format(*arguments)
    text = f"{FUNCTIONS[node.op]}({', '.join(arguments)})"
    return f"wrap<{conversion_type(node.dtype)}>({text})" if wraps(node.dtype) and node.op in _LEAVES_RANGE else text
