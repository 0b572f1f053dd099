"""Random numbers as Triton text: a call of the library's function, or of the one that draws for four neighbours.

Place: used by ``values``. A stream gives four numbers at a time: where four elements that share them are neighbours in
a block, and begin at a multiple of four, they are drawn once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy

from mixbackend.backends.codegen.ir.indices import flatten
from mixbackend.backends.codegen.ir.scalar import Apply, Constant, Expr, IndexValue
from mixbackend.backends.codegen.targets.triton.space import Axis, Space

_TOGETHER = 4
"""Numbers that a stream gives at a time."""


def uniform_text(node: Apply, texts: Sequence[str], space: Space) -> str:
    """Text of the operator ``uniform``.

    Args:
        texts: of its arguments.
    """
    place, vector = node.arguments[2], node.arguments[4]
    assert isinstance(place, IndexValue) and isinstance(vector, Constant), f"{node} is not as the rules make it"
    arguments = ", ".join([*texts[:3], _number(node.arguments[3], texts[3]), str(vector.value), str(space.wide)])
    axis = next((axis for axis in space.axes.values() if axis.dimension == space.rank - 1), None)
    if axis is None or int(vector.value) < _TOGETHER or not _are_fours(place.expression, axis):
        return f"uniform({arguments})"
    axes = space.dimensions(space.axes_of(place.expression))
    count = math.prod(space.axes[name].block for name in axes)
    return f"tl.reshape(uniform_of_fours({arguments}, {count}), {space.shape(axes)})"


def _number(value: Expr, text: str) -> str:
    """A number where it is known: to divide by it is quick then."""
    known = isinstance(value, IndexValue) and value.expression.is_Integer
    return str(int(value.expression)) if known and isinstance(value, IndexValue) else text


def _are_fours(place: sympy.Expr, axis: Axis) -> bool:
    """Whether a block's points along an axis come in groups of four that follow one another in memory."""
    if axis.block % _TOGETHER != 0:
        return False
    position = flatten((loop.index for loop in axis.loops), (loop.extent for loop in axis.loops))
    rest = sympy.expand(place - position)
    if rest.free_symbols & {loop.index for loop in axis.loops}:
        return False
    factors = [term.as_coeff_Mul()[0] for term in sympy.Add.make_args(rest)]
    return all(factor.is_Integer and int(factor) % _TOGETHER == 0 for factor in factors)
