"""Products of matrices as text: the part of a kernel that is written otherwise than in other kernels.

Place: used by ``printer`` for kernels that ``products`` knows. Output: the lines of the kernel.
A block makes a tile of the result. Factors are loaded piece by piece along what is summed up, each in the two
dimensions that hardware multiplies; what follows the sum is written as in every kernel, on the tile.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mixbackend.backends.codegen.ir.kernel import Kernel
from mixbackend.backends.codegen.ir.scalar import Read
from mixbackend.backends.codegen.targets.triton.lines import Lines, Value
from mixbackend.backends.codegen.targets.triton.nests import NestPrinter
from mixbackend.backends.codegen.targets.triton.plan import Plan
from mixbackend.backends.codegen.targets.triton.products import TOGETHER, Product
from mixbackend.backends.codegen.targets.triton.space import Axis, Space
from mixbackend.backends.codegen.targets.triton.values import ValuePrinter


def product_lines(kernel: Kernel, plan: Plan, product: Product) -> Lines:
    """The lines of a product."""
    assert plan.tile is not None
    row, column = (Axis(f"x{place}", side.loops, side.block, place) for place, side in enumerate(plan.sides))
    fixed = [Axis("y", plan.rest, 1, None)] if plan.rest else []
    summed = kernel.nests[product.nest].reduced
    left_inner, right_inner = (Axis(f"r{place}", summed, plan.tile.inner, 1 - place) for place in range(2))
    result = _space(plan, row, column, *fixed)
    lines = Lines()
    lines.add(f"zero = tl.zeros({result.shape(())}, tl.int32)")
    _place(plan, result, lines)
    nests = NestPrinter(kernel, ValuePrinter(kernel, result, lines))
    total = _sum(
        kernel, plan, product, _space(plan, row, left_inner, *fixed), _space(plan, column, right_inner, *fixed), lines
    )
    for place, nest in enumerate(kernel.nests):
        if place == product.nest:
            nests.finish(nest, {product.name: total})
        else:
            nests.nest(nest)
    return lines


def _space(plan: Plan, *axes: Axis) -> Space:
    return Space({axis.name: axis for axis in axes}, 2, plan.wide)


def _place(plan: Plan, space: Space, lines: Lines) -> None:
    """Lines that give a block its tile: a few rows of tiles together, column by column."""
    rows, columns = (space.text(side.blocks) for side in plan.sides)
    lines.add("place = tl.program_id(0)" + (".to(tl.int64)" if plan.wide else ""))
    if plan.rest:
        lines.add(f"y = place // ({rows} * {columns})")
        lines.add(f"place = place % ({rows} * {columns})")
        for line in space.apart(space.axes["y"]):
            lines.add(line)
    lines.add(f"first = place // ({TOGETHER} * {columns}) * {TOGETHER}")
    lines.add(f"inside = place % ({TOGETHER} * {columns})")
    lines.add(f"height = tl.minimum({rows} - first, {TOGETHER})")
    for name, tile in (("x0", "(first + inside % height)"), ("x1", "(inside // height)")):
        axis = space.axes[name]
        lines.add(f"{name} = {tile} * {axis.block} + {space.arange(axis)}")
        _inside(space, axis, lines)


def _inside(space: Space, axis: Axis, lines: Lines) -> None:
    if axis.is_masked:
        lines.add(f"{axis.name}_in = {axis.name} < {space.text(axis.extent)}")
    for line in space.apart(axis):
        lines.add(line)


def _sum(kernel: Kernel, plan: Plan, product: Product, left: Space, right: Space, lines: Lines) -> Value:
    """Lines of the sum, and the variable that holds it."""
    assert plan.tile is not None
    total = lines.name()
    lines.add(f"{total} = tl.zeros([{plan.tile.rows}, {plan.tile.columns}], tl.float32)")
    inner = left.axes["r0"]
    lines.open(f"for start in range(0, {left.text(inner.extent)}, {inner.block}):", "r0", "r1")
    factors = []
    for name, space, read in (("r0", left, product.left), ("r1", right, product.right)):
        axis = space.axes[name]
        lines.add(f"{name} = start + {space.arange(axis)}")
        _inside(space, axis, lines)
        factors.append(ValuePrinter(kernel, space, lines).value(_as_stored(kernel, read)).text)
    precision = "tf32" if plan.tf32 else "ieee"
    lines.add(f'{total} = tl.dot({factors[0]}, {factors[1]}, {total}, input_precision="{precision}")')
    lines.close()
    return Value(total, torch.float32, frozenset({"x0", "x1"}))


def _as_stored(kernel: Kernel, read: Read) -> Read:
    """A factor as it lies in memory: hardware multiplies 16 bits."""
    return replace(read, dtype=next(item.dtype for item in kernel.buffers if item.name == read.buffer))
