"""Index expressions as functions of integers and integer tensors.

Place: below both interpreters.
Input: a sympy expression of ``ir.indices``. Output: a function that evaluates it for given values of its symbols.
Invariants: exact; a symbol without a value is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Union

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo
from mixbackend.contracts import IrError

Value = Union[int, float, torch.Tensor]
"""A number, or an int64 tensor with one value per point of a grid."""
Values = Mapping[sympy.Symbol, Value]


def evaluate_index(expression: sympy.Expr, values: Values) -> Value:
    """The value of an index expression.

    Raises:
        IrError: a symbol has no value, or the expression is made of what index expressions do not have.
    """
    return _compiled(expression)(values)


def evaluate_size(expression: sympy.Expr, values: Values) -> int:
    """The value of an expression that does not differ between points.

    Raises:
        IrError: it does, or it is no integer.
    """
    value = evaluate_index(sympy.sympify(expression), values)
    if not isinstance(value, int):
        raise IrError(f"{expression} should be one integer for all points, it is {value}")
    return value


@functools.lru_cache(maxsize=65536)
def _compiled(expression: sympy.Expr) -> Callable[[Values], Value]:
    if expression.is_Integer:
        number = int(expression)
        return lambda values: number
    if expression.is_Symbol:
        return functools.partial(_look_up, expression)
    function = _function(expression)
    parts = [_compiled(part) for part in expression.args]
    return lambda values: functools.reduce(function, [part(values) for part in parts])


def _look_up(symbol: sympy.Symbol, values: Values) -> Value:
    if symbol not in values:
        raise IrError(f"the symbol {symbol} has no value here", where=f"known: {', '.join(map(str, values))}")
    return values[symbol]


def _function(expression: sympy.Expr) -> Callable[[Any, Any], Any]:
    if expression.is_Add:
        return lambda a, b: a + b
    if expression.is_Mul:
        return lambda a, b: a * b
    if expression.is_Pow and expression.exp.is_Integer and int(expression.exp) > 0:
        return lambda a, b: a**b
    function = _FUNCTIONS.get(expression.func)
    if function is None:
        raise IrError(f"{expression} is no index expression: {expression.func.__name__} has no meaning there")
    return function


def _floor_div(numerator: Value, divisor: Value) -> Value:
    if isinstance(numerator, torch.Tensor) or isinstance(divisor, torch.Tensor):
        return torch.div(torch.as_tensor(numerator), torch.as_tensor(divisor), rounding_mode="floor")
    return numerator // divisor


def _modulo(numerator: Value, divisor: Value) -> Value:
    if isinstance(numerator, torch.Tensor) or isinstance(divisor, torch.Tensor):
        return torch.remainder(torch.as_tensor(numerator), torch.as_tensor(divisor))
    return numerator % divisor


def _minimum(left: Value, right: Value) -> Value:
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return torch.minimum(torch.as_tensor(left), torch.as_tensor(right))
    return min(left, right)


def _maximum(left: Value, right: Value) -> Value:
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return torch.maximum(torch.as_tensor(left), torch.as_tensor(right))
    return max(left, right)


_FUNCTIONS: Mapping[Any, Callable[[Any, Any], Any]] = {
    FloorDiv: _floor_div,
    Modulo: _modulo,
    sympy.Min: _minimum,
    sympy.Max: _maximum,
}
