"""Index expressions: integers over loop indices and symbolic sizes.

Place: inside every load, store and loop bound of the loop-level IR.
Input: sympy integer expressions. Output: simplified ones, equal for every index inside its range.
Invariants: loop indices are non-negative and below their sizes; divisors are positive. ``FloorDiv`` and ``Modulo`` are
the only functions beside ``+``, ``*``, ``Min``, ``Max``; ``Modulo`` is never negative.
Non-goals: deciding anything about sizes. What cannot be proved stays as it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sympy

Ranges = Mapping[sympy.Symbol, sympy.Expr]
"""Number of values of each index symbol: it runs from 0 to this, exclusive. Missing symbols are sizes: positive."""


class FloorDiv(sympy.Function):
    """``floor(a / b)`` for a positive ``b``."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, numerator: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
        """Fold numbers, division by one and by itself."""
        if divisor == 1 or numerator == 0:
            return numerator
        if numerator == divisor:
            return sympy.Integer(1)
        if numerator.is_Integer and divisor.is_Integer:
            return sympy.Integer(int(numerator) // int(divisor))
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[0].is_nonnegative else None


class Modulo(sympy.Function):
    """``a - b * floor(a / b)`` for a positive ``b``: from 0 to ``b - 1``."""

    nargs = (2,)
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, numerator: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
        """Fold numbers and trivial divisors."""
        if divisor == 1 or numerator in (0, divisor):
            return sympy.Integer(0)
        if numerator.is_Integer and divisor.is_Integer:
            return sympy.Integer(int(numerator) % int(divisor))
        return None


def index_symbol(name: str) -> sympy.Symbol:
    """A loop index or a bound run-time value."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def floor_div(numerator: Any, divisor: Any, ranges: Ranges) -> sympy.Expr:
    """``FloorDiv``, with every multiple of the divisor taken out and what is below it dropped."""
    numerator, divisor = sympy.sympify(numerator), sympy.sympify(divisor)
    quotient, rest = _divide(numerator, divisor)
    if rest == 0 or is_below(rest, divisor, ranges):
        return quotient
    if rest.func is FloorDiv:
        # floor(floor(a / b) / c) = floor(a / (b c)) for positive b and c.
        return quotient + floor_div(rest.args[0], rest.args[1] * divisor, ranges)
    return quotient + FloorDiv(rest, divisor)


def modulo(numerator: Any, divisor: Any, ranges: Ranges) -> sympy.Expr:
    """``Modulo``, with every multiple of the divisor dropped."""
    numerator, divisor = sympy.sympify(numerator), sympy.sympify(divisor)
    _, rest = _divide(numerator, divisor)
    return rest if is_below(rest, divisor, ranges) else Modulo(rest, divisor)


def is_below(expression: sympy.Expr, bound: sympy.Expr, ranges: Ranges) -> bool:
    """Whether ``0 <= expression < bound`` can be shown for all indices in their ranges."""
    highest = upper_bound(expression, ranges)
    if highest is None or not _never_negative(expression):
        return False
    return bool(sympy.expand(bound - highest).is_positive)


def upper_bound(expression: sympy.Expr, ranges: Ranges) -> sympy.Expr | None:
    """An expression over sizes that is never exceeded; ``None`` if none is seen."""
    if not expression.free_symbols & ranges.keys():
        return expression
    if expression.func is Modulo:
        return expression.args[1] - 1
    if expression.func is FloorDiv:
        highest = upper_bound(expression.args[0], ranges)
        return None if highest is None else FloorDiv(highest, expression.args[1])
    if expression.is_Symbol:
        return ranges[expression] - 1
    if expression.is_Add or expression.is_Mul:
        return _bound_of_terms(expression, ranges)
    return None


def _bound_of_terms(expression: sympy.Expr, ranges: Ranges) -> sympy.Expr | None:
    bounds = []
    for term in expression.args:
        if expression.is_Add and term.is_nonpositive:
            term = sympy.Integer(0) if term.free_symbols & ranges.keys() else term
        elif not _never_negative(term):
            return None
        highest = upper_bound(term, ranges)
        if highest is None:
            return None
        bounds.append(highest)
    return expression.func(*bounds)


def _never_negative(expression: sympy.Expr) -> bool:
    return bool(expression.is_nonnegative)


def _divide(numerator: sympy.Expr, divisor: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Quotient and rest, where the quotient collects the terms that are certainly multiples of the divisor."""
    quotient, rest = [], []
    for term in sympy.Add.make_args(sympy.expand(numerator)):
        ratio = term / divisor
        if ratio.is_integer and not _has_denominator(ratio):
            quotient.append(ratio)
            continue
        rest.append(term)
    return sympy.Add(*quotient), sympy.Add(*rest)


def _has_denominator(ratio: sympy.Expr) -> bool:
    return bool(sympy.denom(ratio) != 1)


def substitute(expression: sympy.Expr, values: Mapping[sympy.Symbol, sympy.Expr], ranges: Ranges) -> sympy.Expr:
    """Replace index symbols all at once, simplifying divisions on the way.

    Args:
        expression: over the symbols being replaced and others.
        values: what each symbol becomes.
        ranges: of the symbols in the replaced expression.
    """
    if not expression.free_symbols & values.keys():
        return expression
    if expression.is_Symbol:
        return values[expression]
    parts = [substitute(part, values, ranges) for part in expression.args]
    if expression.func is FloorDiv:
        return floor_div(parts[0], parts[1], ranges)
    if expression.func is Modulo:
        return modulo(parts[0], parts[1], ranges)
    return sympy.expand(expression.func(*parts))


def flatten(index: Iterable[Any], sizes: Iterable[Any]) -> sympy.Expr:
    """Row-major position of an index."""
    position = sympy.Integer(0)
    for item, size in zip(index, sizes, strict=True):
        position = position * size + item
    return sympy.expand(position)


def without_digits(position: sympy.Expr) -> sympy.Expr:
    """A position without divisions that give results one behind the other: ``8 floor(i / 8) + i mod 8`` is ``i``."""
    while position.has(FloorDiv, Modulo):
        terms = dict(_divided_terms(position))
        found = next((pair for digit in terms if (pair := _pair_of(digit, terms)) is not None), None)
        if found is None:
            return position
        high, digit = found
        factor = terms[digit]
        position = sympy.expand(position - terms[high] * high - factor * digit + factor * digit.args[0])
    return position


def _divided_terms(position: sympy.Expr) -> Iterator[tuple[sympy.Expr, sympy.Expr]]:
    """Quotients and remainders that a sum has, with their factors."""
    for term in sympy.Add.make_args(sympy.expand(position)):
        factor, node = term.as_independent(FloorDiv, Modulo, as_Add=False)
        if node.func in (FloorDiv, Modulo):
            yield node, factor


def _pair_of(digit: sympy.Expr, terms: Mapping[sympy.Expr, sympy.Expr]) -> tuple[sympy.Expr, sympy.Expr] | None:
    """A remainder, and before it the quotient that it is the rest of, where together they are the dividend."""
    if digit.func is not Modulo:
        return None
    dividend, size = digit.args
    inner, divisor = dividend.args if dividend.func is FloorDiv else (dividend, sympy.Integer(1))
    high = FloorDiv(inner, sympy.expand(size * divisor))
    if high not in terms or sympy.expand(terms[digit] * size - terms[high]) != 0:
        return None
    return high, digit


def unflatten(position: Any, sizes: Iterable[Any], ranges: Ranges) -> tuple[sympy.Expr, ...]:
    """Index of a row-major position; the inverse of ``flatten``."""
    sizes = tuple(sizes)
    index: list[sympy.Expr] = []
    rest = sympy.sympify(position)
    for place in reversed(range(len(sizes))):
        is_first = place == 0
        index.append(rest if is_first else modulo(rest, sizes[place], ranges))
        rest = floor_div(rest, sizes[place], ranges) if not is_first else rest
    return tuple(reversed(index))
