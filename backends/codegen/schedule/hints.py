"""Estimates of symbolic sizes, for decisions about speed and never about correctness.

Place: used by every pass that weighs one form against another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sympy

DEFAULT_HINT = 64
"""Assumed value of a size without a hint."""

Hints = Mapping[sympy.Symbol, int]


def estimate(expression: sympy.Expr, hints: Hints) -> int:
    """A plausible value of a size, at least 0."""
    if expression.is_Integer:
        return max(int(expression), 0)
    known = {symbol: hints.get(symbol, DEFAULT_HINT) for symbol in expression.free_symbols}
    return max(int(expression.subs(known)), 0)


def points(sizes: Iterable[sympy.Expr], hints: Hints) -> int:
    """Estimated number of points of a loop nest."""
    total = 1
    for size in sizes:
        total *= estimate(size, hints)
    return total
