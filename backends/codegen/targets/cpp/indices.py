"""Index expressions as C++: scalars for addresses and bounds, vectors of 64-bit integers for gathers.

Place: used wherever an offset, an extent or the value of an index is printed.
Input: sympy expressions and what each symbol is called. Output: text of type ``i64`` or ``Vec<i64>``.
Invariants: terms of a sum are ordered from what changes least to what changes most, so that the compiler can move the
beginning of a sum out of a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy

from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo

LARGEST_LANES = 16
"""Every vector width divides this number of lanes."""

Namer = Callable[[sympy.Symbol], str]
Rank = Callable[[sympy.Expr], int]


def index_text(expression: sympy.Expr, name: Namer, rank: Rank) -> str:
    """A scalar of type ``i64``.

    Args:
        expression: what to print.
        name: text of a symbol.
        rank: how deep in the loops an expression changes.

    Raises:
        ValueError: it contains a function that index expressions do not have.
    """
    if expression.is_Integer:
        return str(int(expression))
    if expression.is_Symbol:
        return name(expression)
    if expression.is_Add:
        return _sum_text(expression, name, rank)
    parts = [index_text(part, name, rank) for part in _ordered(expression, rank)]
    if expression.is_Mul or expression.is_Pow:
        return f"({' * '.join(parts)})"
    if expression.func in (FloorDiv, Modulo) and expression.args[0].is_nonnegative:
        return f"({parts[0]} {'/' if expression.func is FloorDiv else '%'} {parts[1]})"
    return _nested(_function(expression), [_typed(part) for part in parts])


def _sum_text(expression: sympy.Expr, name: Namer, rank: Rank) -> str:
    text = ""
    for part in _ordered(expression, rank):
        negative = bool(text) and part.as_coeff_Mul()[0].is_negative
        sign = " - " if negative else " + "
        text += (sign if text else "") + index_text(-part if negative else part, name, rank)
    return f"({text})"


def vector_text(expression: sympy.Expr, vector: Callable[[sympy.Symbol], str], rank: Rank, scalar: Namer) -> str:
    """A ``Vec<i64>``.

    Args:
        expression: what to print.
        vector: text of a symbol that differs between lanes, empty if it is the same in all.
        rank: see ``index_text``.
        scalar: text of the other symbols.
    """
    if not any(vector(symbol) for symbol in expression.free_symbols):
        return f"broadcast<i64>({index_text(expression, scalar, rank)})"
    if expression.is_Symbol:
        return vector(expression)
    parts = [vector_text(part, vector, rank, scalar) for part in _ordered(expression, rank)]
    return _nested(_function(expression), parts)


def lane_step(expression: sympy.Expr, vector: sympy.Symbol) -> sympy.Expr | None:
    """How much an expression grows from one lane of a vector to the next; ``None`` if it takes no even steps.

    The index of the first lane is a multiple of the number of lanes, so ``(i // 32) * 7 + i % 32`` has the step 1.
    """
    if not expression.has(vector):
        return sympy.Integer(0)
    if expression == vector:
        return sympy.Integer(1)
    if expression.is_Add:
        steps = [lane_step(part, vector) for part in expression.args]
        return None if None in steps else sympy.Add(*steps)
    if expression.is_Mul:
        moving = [part for part in expression.args if part.has(vector)]
        step = lane_step(moving[0], vector) if len(moving) == 1 else None
        return None if step is None else step * sympy.Mul(*(part for part in expression.args if part is not moving[0]))
    if expression.func in (FloorDiv, Modulo) and _stays_in_block(expression.args[0], expression.args[1], vector):
        return sympy.Integer(1 if expression.func is Modulo else 0)
    return None


def _stays_in_block(numerator: sympy.Expr, divisor: sympy.Expr, vector: sympy.Symbol) -> bool:
    """Whether all lanes of a vector have the same quotient: the divisor and all offsets are multiples of the lanes."""
    if not (divisor.is_Integer and int(divisor) % LARGEST_LANES == 0):
        return False
    terms = sympy.Add.make_args(numerator)
    if terms.count(vector) != 1:
        return False
    others = [term for term in terms if term != vector]
    return not any(term.has(vector) for term in others) and all(map(_is_multiple, others))


def _is_multiple(term: sympy.Expr) -> bool:
    factor = term.as_coeff_Mul()[0]
    return bool(factor.is_Integer and int(factor) % LARGEST_LANES == 0)


def _ordered(expression: sympy.Expr, rank: Rank) -> Sequence[sympy.Expr]:
    if expression.func in (FloorDiv, Modulo):
        return expression.args
    if expression.is_Pow:
        base, exponent = expression.args
        if not (exponent.is_Integer and exponent > 0):
            raise ValueError(f"{expression} is no index expression")
        return [base] * int(exponent)
    # Numbers come first in products and last in sums.
    last = 1 if expression.is_Add else -1
    places = {part: place for place, part in enumerate(expression.as_ordered_terms() if expression.is_Add else ())}
    return sorted(
        expression.args,
        key=lambda part: (
            last if part.is_Integer else 0,
            rank(part),
            places.get(part, 0),
            sympy.default_sort_key(part),
        ),
    )


def _function(expression: sympy.Expr) -> str:
    names = {sympy.Add: "add", sympy.Mul: "mul", sympy.Pow: "mul", FloorDiv: "floor_div", Modulo: "remainder"}
    names |= {sympy.Min: "minimum", sympy.Max: "maximum"}
    if expression.func not in names:
        raise ValueError(f"{expression} is no index expression")
    return names[expression.func]


def _nested(function: str, parts: Sequence[str]) -> str:
    text = parts[0]
    for part in parts[1:]:
        text = f"{function}({text}, {part})"
    return text


def _typed(text: str) -> str:
    return f"{text}ll" if text.lstrip("-").isdigit() else text
