"""One term: sums of which all terms but one are zero, without a loop.

Place: part of ``simplify``, after what a sum folds has been inlined into it.
Input: a ``Reduce``. Output: the ``Map`` that makes the same tensor, where there is one.

    sum over j of where(label == j and counted, value, 0)    becomes    where(0 <= label < size and counted, value, 0)

The gradient of a likelihood is such a row, zero but at the label's class, and the gradient of the softmax before it
begins with the row's sum: a pass over the vocabulary, without which the whole gradient is one pass.
Invariants: equal values, whatever the label is. Non-goals: terms that differ from class to class.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import index_expressions_of, walk
from mixbackend.backends.codegen.ir.scalar import Apply, Constant, Expr, IndexValue, apply
from mixbackend.backends.codegen.ir.stages import Map, Reduce

_INTEGERS = (torch.int64, torch.int32)


def only_term(stage: Reduce) -> Map | None:
    """The sum's one term, point by point; ``None`` if there may be more."""
    if stage.kind != "sum" or len(stage.reduced) != 1 or len(stage.targets) != 1 or stage.targets[0] is None:
        return None
    (loop,), value = stage.reduced, stage.value
    if not isinstance(value, Apply) or value.op != "where":
        return None
    condition, term, otherwise = value.arguments
    conditions = list(_conjunction(condition))
    labels = [label for part in conditions if (label := _equal_to(part, loop.index)) is not None]
    others = [part for part in conditions if _equal_to(part, loop.index) is None]
    if (
        not labels
        or otherwise != Constant(otherwise.dtype, 0.0)
        or any(_varies(part, loop.index) for part in (*others, term))
    ):
        return None
    label = labels[0]
    inside = (
        label >= Constant(label.dtype, 0),
        label < IndexValue(label.dtype, sympy.sympify(loop.size)),
        *(apply("eq", label, other) for other in labels[1:]),
    )
    met = reduce(lambda first, second: first & second, (*inside, *others))
    return Map(stage.targets[0], stage.loops, apply("where", met, term, otherwise), stage.origins)


def _conjunction(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Apply) and condition.op == "and" and condition.dtype == torch.bool:
        for part in condition.arguments:
            yield from _conjunction(part)
    else:
        yield condition


def _equal_to(condition: Expr, index: sympy.Symbol) -> Expr | None:
    """The integer that a condition says an index to be."""
    if not isinstance(condition, Apply) or condition.op != "eq":
        return None
    for place, other in zip(condition.arguments, reversed(condition.arguments), strict=True):
        if isinstance(place, IndexValue) and place.expression == index and place.dtype in _INTEGERS:
            return None if _varies(other, index) else other
    return None


def _varies(value: Expr, index: sympy.Symbol) -> bool:
    """Whether a value depends on an index."""
    return any(index in symbols_of(node) for node in walk(value))


def symbols_of(node: Expr) -> frozenset[sympy.Symbol]:
    """Symbols in the index of an access, or in the value of an index, without those of its parts."""
    return frozenset().union(*(part.free_symbols for part in index_expressions_of(node)))
