"""Products of matrices among folds: which loops are rows, columns and terms.

Place: beside ``stages``; read by passes over products, and by targets that say which of them they have.
Non-goals: products of as many matrices as there are batches; which target has which products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mixbackend.backends.codegen.ir.scalar import Apply, Load
from mixbackend.backends.codegen.ir.stages import Loop, Stage, is_product

COLUMN = 1
"""The loop of the columns: after the rows of a matrix, and after the batch of an image."""

NARROW = frozenset({torch.int8, torch.uint8})
"""Integers that all floats hold exactly: a matrix of them is a quantised weight, and is packed as it is."""


@dataclass(frozen=True)
class MatrixProduct:
    """``y[rows, column] = sum over terms of left[rows, terms] * right[terms, column]``

    Attributes:
        rows: one of a matrix; of an image those of batches and of each dimension of the windows.
        terms: likewise: one, or those of each dimension of a window, then its channels.
    """

    left: Load
    right: Load
    rows: tuple[Loop, ...]
    column: Loop
    terms: tuple[Loop, ...]
    origins: tuple[str, ...]


def matrix_product(stage: Stage) -> MatrixProduct | None:
    """A product of two matrices, ``None`` if a stage is none: no other loop may move both factors."""
    if not is_product(stage) or not isinstance(stage.value, Apply) or len(stage.loops) <= COLUMN:
        return None
    left, right = stage.value.arguments
    assert isinstance(left, Load) and isinstance(right, Load), "a product of other things than elements"
    column = stage.loops[COLUMN]
    rows = tuple(loop for loop in stage.loops if loop is not column)
    moves_right = {symbol for part in right.index for symbol in part.free_symbols}
    if any(column.index in part.free_symbols for part in left.index) or any(loop.index in moves_right for loop in rows):
        return None
    return MatrixProduct(left, right, rows, column, stage.reduced, stage.origins)
