"""Conditions: the masks of reads, part by part.

Place: below ``window_unrolling``. Masks are conjunctions of comparisons between index expressions, as ``lower.windows``
makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.grammar import rewrite
from mixbackend.backends.codegen.ir.kernel import Statement
from mixbackend.backends.codegen.ir.scalar import Apply, Constant, Expr, IndexValue, Read, all_of


def parts_of(mask: Expr | None) -> Iterator[Expr]:
    """What has to hold, condition by condition."""
    if isinstance(mask, Apply) and mask.op == "and":
        for part in mask.arguments:
            yield from parts_of(part)
    elif mask is not None:
        yield mask


def comparison(condition: Expr) -> tuple[sympy.Expr, sympy.Expr] | None:
    """The sides of ``left >= right`` or ``left < right`` between index expressions."""
    if not isinstance(condition, Apply) or condition.op not in ("ge", "lt"):
        return None
    sides = []
    for side in condition.arguments:
        if isinstance(side, IndexValue):
            sides.append(side.expression)
        elif isinstance(side, Constant) and isinstance(side.value, int):
            sides.append(sympy.Integer(side.value))
        else:
            return None
    return sides[0], sides[1]


def without(statement: Statement, conditions: Iterable[Expr]) -> Statement:
    """The statement with conditions known to hold."""
    known = frozenset(conditions)

    def node(item: Expr) -> Expr:
        if not isinstance(item, Read) or item.mask is None:
            return item
        left = [part for part in parts_of(item.mask) if part not in known]
        return replace(item, mask=all_of(left))

    return rewrite(statement, node)
