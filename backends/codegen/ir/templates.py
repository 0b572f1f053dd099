"""Templates: computations of whole tensors that targets have as a piece of their own.

Place: what ``stages.Template`` and ``kernel.TemplateKernel`` name; a target says in its traits which of them it has.
``interpret.templates`` says what they mean, point for point; how they are computed is the target's business.
Non-goals: choosing between a template and plain stages; a lowering rule does that.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeGuard

import sympy

from mixbackend.backends.codegen.ir.scalar import Load
from mixbackend.backends.codegen.ir.stages import Loop, Stage, Template


@dataclass(frozen=True, slots=True)
class TemplateForm:
    """What a template takes and gives.

    Attributes:
        operands, results: names, each with its number of dimensions, in order.
        optional: operands that may be missing.
        options: names of its constants, in order.
        finished: whether something may be computed of its first result, point by point, before it is stored.
    """

    operands: tuple[tuple[str, int], ...]
    results: tuple[tuple[str, int], ...]
    optional: frozenset[str]
    options: tuple[str, ...]
    finished: bool = False


RESULT = "result"
"""Name of a template's first result in what is computed of it."""

ATTENTION = "attention"
"""``output = softmax(query key^T scale + mask) value`` and the logarithm of what the softmax divides by.

Tensors are [batch, head, position, feature], the mask [batch, head, query, key]. With ``causal`` a query sees no key
after its own position. Where a row of scores is minus infinity throughout, ``zeros`` says whether it gives zeros, and 0
as logarithm, or NaN, and minus infinity.
"""

ATTENTION_PARTS = "attention_parts"
"""Attention of one row of queries, part by part of the keys: what each part adds to the result.

Queries are [batch, group, head, feature], keys and values [batch, group, position, feature]: the heads of a group share
them. The mask is [batch, group, head, position]. A part is ``positions`` keys, the last one maybe fewer. Of every head
and part there are the ``largest`` score, the ``total`` of the exponentials of the scores beside it, and the ``sums`` of
the values in proportion of these, [batch, group, head, part, feature]; beside 0 instead of the largest score where that
is minus infinity.
"""

PRODUCT = "product"
"""``output = left right + bias`` in float32, where rows and terms have three dimensions each.

The left matrix is [batch, line, place, window line, window place, term]: windows of an image, which may overlap, or an
ordinary matrix with other dimensions of 1. The output is [batch, line, place, column]. The right matrix, stored as
floats of 32 or 16 bits or as integers of 8, is in panels of ``width`` columns: [panel, window line, window place, term,
column]. Columns of the last panel beyond those of the result are zeros. Columns of the output are neighbours in memory.
With a ``group``, the right matrix is of codes: each is multiplied by the scale of its group of so many terms and its
column, and the offset, where there is one, is added; both are [panel, group, column]. Codes of 4 ``bits`` are numbers
from -8 on: eight terms lie in an int32, with those of the first in the lowest bits.
"""

PRODUCT_DIMENSIONS = 3
"""Of the rows of a product, and of its terms."""

TEMPLATES = {
    ATTENTION: TemplateForm(
        operands=(("query", 4), ("key", 4), ("value", 4), ("mask", 4)),
        results=(("output", 4), ("logarithm", 3)),
        optional=frozenset({"mask"}),
        options=("causal", "scale", "zeros"),
    ),
    ATTENTION_PARTS: TemplateForm(
        operands=(("query", 4), ("key", 4), ("value", 4), ("mask", 4)),
        results=(("sums", 5), ("largest", 4), ("total", 4)),
        optional=frozenset({"mask"}),
        options=("scale", "positions"),
    ),
    PRODUCT: TemplateForm(
        operands=(("left", 6), ("packed", 5), ("bias", 1), ("scales", 3), ("offsets", 3)),
        results=(("output", 4),),
        optional=frozenset({"bias", "scales", "offsets"}),
        options=("width", "bits", "group"),
        finished=True,
    ),
}


def other(number: int) -> str:
    """Name of an operand beyond the form in what is computed of a template's result."""
    return f"other{number}"


def is_packed_product(stage: Stage) -> TypeGuard[Template]:
    """Whether a stage is the template of products."""
    return isinstance(stage, Template) and stage.name == PRODUCT


def linear(
    expression: sympy.Expr, symbols: Collection[sympy.Symbol]
) -> tuple[dict[sympy.Symbol, sympy.Expr], sympy.Expr] | None:
    """Factor of each symbol and the rest, if an expression is a sum of them; ``None`` if it is not."""
    expression = sympy.expand(expression)
    factors = {symbol: expression.coeff(symbol, 1) for symbol in symbols}
    rest = sympy.expand(expression - sympy.Add(*(factor * symbol for symbol, factor in factors.items())))
    own = set(symbols)
    if any(part.free_symbols & own for part in (rest, *factors.values())):
        return None
    return factors, rest


def is_place(value: object, loops: tuple[Loop, ...]) -> bool:
    """Whether a value is what an operand may be: an element of a tensor, at an index linear and rising in the loops."""
    if not isinstance(value, Load) or value.mask is not None or value.bindings:
        return False
    parts = [linear(part, [loop.index for loop in loops]) for part in value.index]
    return all(
        part is not None and not any(factor.could_extract_minus_sign() for factor in part[0].values()) for part in parts
    )
