"""Sizes of captured graphs as index expressions.

Place: at the border between ``contracts`` and the loop-level IR.
Invariants: torch's own sympy functions become ours, so that nothing below knows torch's. Products are multiplied out:
equal polynomials are equal expressions.
"""

from __future__ import annotations

from typing import Any

import sympy

from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.contracts import SymbolicSize

_FUNCTIONS: dict[str, Any] = {
    "FloorDiv": FloorDiv,
    "CleanDiv": FloorDiv,
    "Mod": Modulo,
    "PythonMod": Modulo,
    "Max": sympy.Max,
    "Min": sympy.Min,
}


def import_size(size: Any) -> sympy.Expr:
    """A size or integer argument as an expression.

    Raises:
        RefusedError: it depends on data, or is made of functions that index expressions do not have.
    """
    if not isinstance(size, SymbolicSize):
        return sympy.Integer(size)
    if size.hint is None:
        raise RefusedError("data-dependent", f"size {size} depends on values")
    return _imported(size.expression)


def _imported(expression: sympy.Expr) -> sympy.Expr:
    if expression.is_Atom:
        return expression
    parts = [_imported(part) for part in expression.args]
    if expression.is_Add or expression.is_Mul or expression.is_Pow:
        return sympy.expand(expression.func(*parts))
    function = _FUNCTIONS.get(expression.func.__name__)
    if function is None:
        raise RefusedError("dynamic-shape", f"size {expression} is made of {expression.func.__name__}")
    return function(*parts)
