"""Index expressions as Triton text.

Place: used by everything that prints. Input: sympy expressions over names that are variables of the kernel.
Invariants: ``//`` and ``%`` are written only where neither side can be negative; elsewhere the library's.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo
from mixbackend.contracts import CodegenError


def index_text(expression: sympy.Expr, names: Mapping[sympy.Symbol, str]) -> str:
    """Text of an expression.

    Args:
        names: of symbols that are called something else in the kernel.
    """
    if expression.is_Integer:
        return str(int(expression))
    if expression.is_Symbol:
        return names.get(expression, expression.name)
    parts = [index_text(part, names) for part in sorted(expression.args, key=sympy.default_sort_key)]
    if expression.is_Add:
        return f"({' + '.join(parts)})"
    if expression.is_Mul:
        return f"({' * '.join(parts)})"
    if expression.func in (FloorDiv, Modulo):
        return _division(expression, *(index_text(part, names) for part in expression.args))
    if expression.func in (sympy.Min, sympy.Max):
        function = "tl.minimum" if expression.func is sympy.Min else "tl.maximum"
        text = parts[0]
        for part in parts[1:]:
            text = f"{function}({text}, {part})"
        return text
    if expression.is_Pow and expression.args[1].is_Integer and expression.args[1] > 0:
        return f"({' * '.join([index_text(expression.args[0], names)] * int(expression.args[1]))})"
    raise CodegenError(f"the index {expression} has no Triton text")


def _division(expression: sympy.Expr, numerator: str, divisor: str) -> str:
    is_floor = expression.func is FloorDiv
    if expression.args[0].is_nonnegative:
        return f"({numerator} {'//' if is_floor else '%'} {divisor})"
    return f"{'floor_div_integer' if is_floor else 'remainder_integer'}({numerator}, {divisor})"
