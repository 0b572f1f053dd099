"""Panels of stored weights: codes as a product reads them, with the scale and the offset of each group.

Place: beside ``packed_products``, which makes tensors of what is said here. Input: a weight that was taken apart.
Output: expressions over the loops of panels.
Codes that fit in 4 bits lie eight in an int32, the first term lowest, as distances from the lowest; what reads them
takes them for numbers from ``-8`` on, and the offset makes up for that.
Invariants: nothing is read beyond the last column or term; codes there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import rewrite, walk
from mixbackend.backends.codegen.ir.indices import Ranges
from mixbackend.backends.codegen.ir.products import MatrixProduct
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, Load, apply, cast
from mixbackend.backends.codegen.ir.stages import Concatenate, Loop, Map, Stage
from mixbackend.backends.codegen.ir.stored_weights import NIBBLES, WORD_TERMS, StoredWeight, stored_weight
from mixbackend.backends.codegen.schedule.rewrite import inlined, with_indices


def weight_of(product: MatrixProduct, makers: Mapping[str, Stage], ranges: Ranges) -> StoredWeight | None:
    """The right matrix of a product as a stored weight, if it is computed of one."""
    if product.right.tensor not in makers or len(product.terms) > 1 or len(product.rows) > 1:
        return None
    found = stored_weight(_resolved(product.right, makers, ranges), product.terms[0])
    if found is None or (found.is_plain and not found.fits_nibbles):
        return None
    return found


def _resolved(value: Expr, makers: Mapping[str, Stage], ranges: Ranges) -> Expr:
    """A value in terms of what no map and no concatenation makes."""

    def once(node: Expr) -> Expr:
        stage = makers.get(node.tensor) if isinstance(node, Load) else None
        if not isinstance(node, Load):
            return node
        if isinstance(stage, Map):
            return inlined(stage.value, stage.loops, node, ranges)
        return _of_parts(stage, node, ranges) if isinstance(stage, Concatenate) else node

    while any(isinstance(node, Load) and node.tensor in makers for node in walk(value)):
        value = rewrite(value, once)
    return value


def _of_parts(stage: Concatenate, load: Load, ranges: Ranges) -> Expr:
    """An element of a concatenation: of the part that it lies in."""
    place = load.index[stage.axis]
    made: Expr = Constant(load.dtype, load.other)
    for part in stage.parts:
        first, last = (IndexValue(torch.int64, item) for item in (part.start, part.start + part.size))
        here = IndexValue(torch.int64, place)
        inside = (here >= first) & (here < last)
        index = (*load.index[: stage.axis], place - part.start, *load.index[stage.axis + 1 :])
        mask = inside if load.mask is None else load.mask & inside
        value = inlined(part.value, stage.loops, replace(load, index=index, mask=mask), ranges)
        made = apply("where", inside, value, made, dtype=load.dtype)
    return made


class WeightPanels:
    """Values of panels: of codes over (panel, term or word, lane), of scales and offsets over (panel, group, lane).

    Args:
        weight, product: what is packed.
        width: of a panel.
        ranges: sizes of all indices.
    """

    def __init__(self, weight: StoredWeight, product: MatrixProduct, width: sympy.Expr, ranges: Ranges) -> None:
        self._weight = weight
        self._column = product.column
        self._term = product.terms[0]
        self._width = width
        self._ranges = ranges

    @property
    def bits(self) -> int:
        """Of a code."""
        return 4 if self._weight.fits_nibbles else 8

    @property
    def dtype(self) -> torch.dtype:
        """Of what holds codes."""
        return torch.int32 if self.bits == 4 else self._weight.dtype

    @property
    def rows(self) -> sympy.Expr:
        """Of codes in a panel."""
        terms = int(self._term.size)
        return sympy.Integer(-(-terms // WORD_TERMS) if self.bits == 4 else terms)

    @property
    def groups(self) -> sympy.Expr:
        """Of a column."""
        return sympy.Integer(-(-int(self._term.size) // self._weight.group))

    def codes(self, loops: Sequence[Loop]) -> Expr:
        """What lies at a place of the packed matrix."""
        panel, row, lane = (loop.index for loop in loops)
        if self.bits == 8:
            return self._at(cast(self._weight.code, self._weight.dtype), panel, row, lane)
        code = cast(self._weight.code, torch.int32) - _integer(self._weight.lowest)
        word: Expr | None = None
        for number in range(WORD_TERMS):
            part = self._at(code, panel, row * WORD_TERMS + number, lane)
            part = apply("shift_left", part, _integer(4 * number)) if number else part
            word = part if word is None else word | part
        assert word is not None
        return word

    def scales(self, loops: Sequence[Loop]) -> Expr:
        """What a group of codes is multiplied by."""
        return self._of_group(self._weight.scale, loops)

    def offsets(self, loops: Sequence[Loop]) -> Expr | None:
        """What is added to each of a group then; ``None`` where that is nothing."""
        weight, middle = self._weight, self._weight.lowest + NIBBLES // 2
        offset = weight.offset
        if self.bits == 4 and middle != 0:
            moved = Constant(torch.float32, float(middle)) * weight.scale
            offset = moved if offset is None else offset + moved
        return None if offset is None else self._of_group(offset, loops)

    def _of_group(self, value: Expr, loops: Sequence[Loop]) -> Expr:
        panel, group, lane = (loop.index for loop in loops)
        return self._at(value, panel, group * self._weight.group, lane)

    def _at(self, value: Expr, panel: sympy.Expr, term: sympy.Expr, lane: sympy.Expr) -> Expr:
        """The value for a column and a term, without reading beyond the last ones."""
        column = panel * self._width + lane
        places = ((column, self._column, self._width), (term, self._term, WORD_TERMS if self.bits == 4 else 1))
        moved = with_indices(value, {self._column.index: column, self._term.index: term}, self._ranges)
        for place, loop, together in places:
            if loop.size % together != 0:
                moved = _read_below(moved, place, loop.size)
        return moved


def _integer(value: int) -> Constant:
    return Constant(torch.int32, value)


def _read_below(value: Expr, place: sympy.Expr, size: sympy.Expr) -> Expr:
    """A value that reads nothing where a place is beyond a size."""
    inside = IndexValue(torch.int64, place) < IndexValue(torch.int64, size)

    def once(node: Expr) -> Expr:
        if not isinstance(node, Load):
            return node
        return replace(node, mask=inside if node.mask is None else node.mask & inside)

    return rewrite(value, once)
