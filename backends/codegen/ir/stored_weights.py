"""Stored weights: a matrix that is computed of codes of few bits, taken apart into codes, scales and offsets.

Place: beside ``products``; read by the pass that packs products.
Input: the right matrix of a product as an expression of a column and a term. Output: ``code * scale + offset``, where
scale and offset are the same for all terms of a group.
Roundings to 16 bits on the way are left out, as products leave out those between their terms.
Invariants: codes are integers of 8 bits, or within sixteen values that follow one another: those fit in 4 bits.
Non-goals: which products are claimed; ``product_patterns`` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import all_index_expressions
from mixbackend.backends.codegen.ir.indices import FloorDiv
from mixbackend.backends.codegen.ir.products import NARROW
from mixbackend.backends.codegen.ir.scalar import ROUNDING, Apply, Constant, Expr, Load, apply
from mixbackend.backends.codegen.ir.stages import Loop

NIBBLES = 16
"""How many codes 4 bits tell apart."""
WORD_TERMS = 8
"""Codes of 4 bits that lie in 32."""
_ONE = Constant(torch.float32, 1.0)


@dataclass(frozen=True)
class StoredWeight:
    """``code * scale + offset``, over the column and the term of a product.

    Attributes:
        code: an integer.
        lowest: of all codes.
        highest: likewise.
        group: terms that have one scale and one offset; all of them, if there is one group.
    """

    code: Expr
    lowest: int
    highest: int
    scale: Expr
    offset: Expr | None
    group: int

    @property
    def is_plain(self) -> bool:
        """Whether the matrix is its codes."""
        return self.scale is _ONE and self.offset is None

    @property
    def fits_nibbles(self) -> bool:
        """Whether 4 bits tell the codes apart, in words that are of one group."""
        return self.highest - self.lowest < NIBBLES and self.group % WORD_TERMS == 0

    @property
    def dtype(self) -> torch.dtype:
        """Integers of 8 bits that hold all codes."""
        return torch.int8 if self.highest <= torch.iinfo(torch.int8).max else torch.uint8


@dataclass(frozen=True)
class _Affine:
    code: Expr
    scale: Expr
    offset: Expr | None


def stored_weight(value: Expr, term: Loop) -> StoredWeight | None:
    """Take a matrix apart; ``None`` if it is none of codes in groups.

    Args:
        value: an element of it.
        term: the loop along which it is summed up; its size has to be known.
    """
    if not term.size.is_Integer:
        return None
    found = _Reader(term).affine(value)
    if found is None:
        return None
    bounds = code_range(found.code)
    group = _group(found, term)
    if bounds is None or group is None or not -128 <= bounds[0] <= bounds[1] <= 255:
        return None
    if bounds[0] < 0 and bounds[1] > torch.iinfo(torch.int8).max:
        return None
    return StoredWeight(found.code, *bounds, found.scale, found.offset, group)


class _Reader:
    """Reads an expression from its result inwards.

    Args:
        term: see ``stored_weight``.
    """

    def __init__(self, term: Loop) -> None:
        self._term = term.index

    def affine(self, value: Expr) -> _Affine | None:
        """A float as a multiple of a code and something else, neither of which has codes."""
        if not isinstance(value, Apply) or value.dtype != torch.float32:
            return None
        if value.op == "to_dtype" and not value.arguments[0].dtype.is_floating_point:
            return _Affine(value.arguments[0], _ONE, None)
        if value.op in ROUNDING.values() or value.op == "to_dtype":
            return self.affine(value.arguments[0])
        if value.op not in ("add", "sub", "mul", "div") or len(value.arguments) != 2:
            return None
        first, second = value.arguments
        if self._is_of_terms(first) == self._is_of_terms(second):
            return None
        if self._is_of_terms(first):
            inner = self.affine(first)
            return None if inner is None else _combined(value.op, inner, second)
        inner = self.affine(second) if value.op in ("add", "mul") else None
        return None if inner is None else _combined(value.op, inner, first)

    def _is_of_terms(self, value: Expr) -> bool:
        """Whether a value differs among the terms of a group."""
        return any(self._term in part.free_symbols for part in _without_groups(value, self._term))


def _combined(op: str, inner: _Affine, other: Expr) -> _Affine:
    if op in ("add", "sub"):
        other = -other if op == "sub" else other
        return _Affine(inner.code, inner.scale, other if inner.offset is None else inner.offset + other)
    scale = other if inner.scale is _ONE and op == "mul" else apply(op, inner.scale, other)
    return _Affine(inner.code, scale, None if inner.offset is None else apply(op, inner.offset, other))


def _without_groups(value: Expr, term: sympy.Symbol) -> list[sympy.Expr]:
    """Index expressions of a value, with numbers of groups of terms as symbols of their own."""
    groups = sympy.Symbol("group", integer=True, nonnegative=True)
    places = list(all_index_expressions(value))
    numbers = {item: groups for part in places for item in part.atoms(FloorDiv) if item.args[0] == term}
    return [part.xreplace(numbers) for part in places]


def _group(found: _Affine, term: Loop) -> int | None:
    """Terms of a group: ``None`` where scales and offsets have different ones."""
    parts = [found.scale, *([] if found.offset is None else [found.offset])]
    places = list(all_index_expressions(*parts))
    divisors = {item.args[1] for part in places for item in part.atoms(FloorDiv) if item.args[0] == term.index}
    if not divisors:
        return int(term.size)
    (divisor, *others) = divisors
    return int(divisor) if not others and divisor.is_Integer else None


def code_range(code: Expr) -> tuple[int, int] | None:
    """The least and the greatest value of an integer expression, ``None`` where they are not known."""
    if isinstance(code, Constant):
        return int(code.value), int(code.value)
    if isinstance(code, Load):
        limits = torch.iinfo(code.dtype) if code.dtype in NARROW else None
        return None if limits is None else (int(limits.min), int(limits.max))
    if not isinstance(code, Apply) or code.dtype.is_floating_point:
        return None
    known = [code_range(item) for item in code.arguments]
    if code.op == "where":
        known = known[1:]
    if code.op == "and" and code.dtype != torch.bool:
        masks = [item for item in known if item is not None and item[0] >= 0]
        return (0, min(item[1] for item in masks)) if masks else None
    bounds = [item for item in known if item is not None]
    if len(bounds) != len(known):
        return None
    return _inside(_computed(code.op, bounds), code.dtype)


def _computed(op: str, bounds: list[tuple[int, int]]) -> tuple[int, int] | None:
    (low, high), (first, last) = bounds[0], bounds[-1]
    if op == "where":
        return min(low, first), max(high, last)
    if op == "to_dtype":
        return low, high
    if op == "add":
        return low + first, high + last
    if op == "sub":
        return low - last, high - first
    if op == "shift_right" and first == last and first >= 0:
        return low >> first, high >> first
    if op == "floor_div" and first == last and first > 0:
        return low // first, high // first
    if op == "remainder" and first == last and first > 0:
        return 0, first - 1
    return None


def _inside(bounds: tuple[int, int] | None, dtype: torch.dtype) -> tuple[int, int] | None:
    """The bounds, unless a type wraps what is beyond it."""
    if bounds is None or dtype == torch.bool:
        return None
    limits = torch.iinfo(dtype)
    return bounds if limits.min <= bounds[0] and bounds[1] <= limits.max else None
