"""The rule of torch's product with a weight of 4 bits: two codes lie in a byte, and each group has a scale and a zero.

Place: registered by ``lower.table``, above ``products``. ``schedule.panels_of_weights`` packs the codes anew.
Method: ``_convert_weight_to_int4pack_for_cpu`` lays blocks of columns out term after term, and a byte holds a column of
the first half of a block and, in its upper bits, one of the second. How wide a block is depends on the processor, so
the operator itself is asked once.
Invariants: a code is ``-8`` to ``7``, a weight ``code * scale + zero`` in float32; sums are made in float32.
Non-goals: columns that are no whole blocks (their bytes lie in another order).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import floor_div, modulo
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, apply
from mixbackend.backends.codegen.lower import view
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.products import sums_of_products
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

_BLOCKS = (64, 32)
_MIDDLE = 8
_BITS, _MASK = 4, 15


@lru_cache(maxsize=1)
def block_columns() -> int:
    """Columns of a block as this processor's kernels lay it out; 0 where that is none of the known ways."""
    columns, terms = max(_BLOCKS), 2
    numbers = torch.arange(columns, dtype=torch.int32)[:, None].expand(columns, terms)
    parts = [(numbers >> shift & _MASK).contiguous() for shift in (0, _BITS)]
    try:
        packed = [torch.ops.aten._convert_weight_to_int4pack_for_cpu(part, 1).flatten().int() for part in parts]
    except (RuntimeError, NotImplementedError):
        return 0
    low, high = ((packed[0] >> shift & _MASK) + (packed[1] >> shift & _MASK) * 16 for shift in (0, _BITS))
    for block in _BLOCKS:
        first = torch.arange(columns).reshape(-1, 2, block // 2)[:, 0]
        wanted = first[:, None, :].expand(-1, terms, -1).flatten()
        if torch.equal(low.long(), wanted) and torch.equal(high.long(), wanted + block // 2):
            return block
    return 0


@rule("aten._weight_int4pack_mm_for_cpu.default")
def int4_product(lowering: Lowering, self: Tensor, mat2: Tensor, **groups: Any) -> Tensor:
    """``self @ (code * scale + zero)``"""
    group, scales = groups["qGroupSize"], groups["qScaleAndZeros"]
    (columns, half), terms, width = mat2.sizes, self.sizes[-1], block_columns()
    if not all(size.is_Integer for size in (columns, half, *scales.sizes)) or half * 2 != terms:
        raise RefusedError("dynamic-shape", f"a weight of {columns} x {half} bytes for {terms} terms")
    if width == 0 or columns % width != 0 or terms == 0:
        raise RefusedError("layout", f"{columns} columns in blocks of {width}")
    if tuple(scales.sizes) != (-(-terms // group), columns, 2):
        raise RefusedError("argument", f"scales {scales.sizes} of groups of {group}")
    stored = view.reshape(lowering, mat2, (columns // width, terms, width // 2))
    block, half_block = sympy.Integer(width), sympy.Integer(width // 2)

    def weight(index: Index) -> Expr:
        term, column = index
        place = modulo(column, block, lowering.ranges)
        lane = modulo(place, half_block, lowering.ranges)
        byte = stored.at((floor_div(column, block, lowering.ranges), term, lane))
        shift = IndexValue(torch.int64, floor_div(place, half_block, lowering.ranges) * _BITS)
        wide = [apply("to_dtype", part, dtype=torch.int32) for part in (byte, shift)]
        code = apply("shift_right", *wide) & Constant(torch.int32, _MASK)
        number = floor_div(term, sympy.Integer(group), lowering.ranges)
        scale, zero = (
            lowering.cast(scales.at((number, column, sympy.Integer(part))), torch.float32) for part in range(2)
        )
        code = code - Constant(torch.int32, _MIDDLE)
        return apply("to_dtype", code, dtype=torch.float32) * scale + zero

    right = lowering.map((terms, columns), torch.float32, weight)
    return sums_of_products(lowering, self, right, self.dtype)
