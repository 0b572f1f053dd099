"""Comparisons of indices as ranges of lanes.

Place: used by the printer of values, for the masks of padding and windows.
Input: ``index < bound`` and its like, where the index grows evenly along the lanes.
Output: a mask made from the number of lanes for which it holds, instead of 64-bit arithmetic in every lane.
"""

from __future__ import annotations

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Apply, Constant, Expr, IndexValue
from mixbackend.backends.codegen.targets.cpp.indices import lane_step
from mixbackend.backends.codegen.targets.cpp.points import PointPrinter

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_LARGEST = 2**61
"""Of a constant: sums of two stay far from overflow."""


def lanes_below(point: PointPrinter, node: Apply) -> str:
    """A mask; empty if the node is no such comparison. ``i - 1 >= 0``, for example, is ``not_(lanes_below(1 - i))``."""
    if node.op not in _MIRRORED or point.lane.vector is None:
        return ""
    first, second = (_index(argument) for argument in node.arguments)
    if first is None or second is None or point.varies(first) == point.varies(second):
        return ""
    operator = node.op if point.varies(first) else _MIRRORED[node.op]
    moving, bound = (first, second) if point.varies(first) else (second, first)
    step = lane_step(moving, point.lane.vector)
    if step is None or not step.is_Integer or step <= 0:
        return ""
    # Up to and including the bound is below the next integer; not below is at or above.
    limit = bound + 1 if operator in ("le", "gt") else bound
    distance = sympy.expand(limit - moving)
    count = point.text(distance) if step == 1 else f"floor_div({point.text(distance + step - 1)}, {step}ll)"
    mask = f"lanes_below({count})"
    return mask if operator in ("lt", "le") else f"not_({mask})"


def _index(argument: Expr) -> sympy.Expr | None:
    """An integer that is known from indices and sizes alone."""
    if isinstance(argument, IndexValue) and argument.dtype == torch.int64:
        return argument.expression
    if isinstance(argument, Constant) and argument.dtype == torch.int64 and abs(argument.value) < _LARGEST:
        return sympy.Integer(int(argument.value))
    return None
