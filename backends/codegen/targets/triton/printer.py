"""Printer: a specialised kernel under a plan as the text of a Triton function.

Place: between ``plan`` and ``compiler``. Output: a ``Text``; equal kernels under equal plans are one text.
The function takes the kernel's buffers, then the parameters and numbers that are not known when compiling.
"""

from __future__ import annotations

import sympy

from mixbackend.backends.codegen.ir.kernel import Kernel
from mixbackend.backends.codegen.targets.triton.dtypes import POINTERS
from mixbackend.backends.codegen.targets.triton.indices import index_text
from mixbackend.backends.codegen.targets.triton.lines import Lines
from mixbackend.backends.codegen.targets.triton.nests import NestPrinter
from mixbackend.backends.codegen.targets.triton.plan import Plan
from mixbackend.backends.codegen.targets.triton.product_printer import product_lines
from mixbackend.backends.codegen.targets.triton.products import as_sums, find_product
from mixbackend.backends.codegen.targets.triton.space import Space, make_space
from mixbackend.backends.codegen.targets.triton.text import FUNCTION, Text
from mixbackend.backends.codegen.targets.triton.values import ValuePrinter


def print_kernel(kernel: Kernel, plan: Plan) -> Text:
    """Text of a kernel."""
    product = None if plan.tile is None else find_product(kernel)
    lines = _lines(as_sums(kernel), plan) if product is None else product_lines(kernel, plan, product)
    signature = _signature(kernel, plan)
    # Blocks of a product that start early would gather on the units that are idle first.
    begin = "    begin()\n" if product is None else ""
    body = f"@triton.jit\ndef {FUNCTION}({_names(signature)}):\n{begin}{lines.text}\n"
    return Text(body, signature, plan.warps, 0 if plan.tile is None else plan.tile.stages)


def print_part(kernel: Kernel, plan: Plan, name: str) -> str:
    """Text of a function that does what one block of a kernel does; its first argument is the block's number."""
    arguments = f"block, {_names(_signature(kernel, plan))}"
    return f"@triton.jit\ndef {name}({arguments}):\n{_lines(kernel, plan, 'block').text}\n"


def _names(signature: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(name for name, _ in signature)


def _signature(kernel: Kernel, plan: Plan) -> tuple[tuple[str, str], ...]:
    signature = [(item.name, POINTERS[item.dtype]) for item in kernel.buffers]
    signature += [(symbol.name, "i64" if plan.wide else "i32") for symbol in kernel.parameters]
    signature += [(symbol.name, "fp64") for symbol in kernel.numbers]
    return tuple(signature)


def _lines(kernel: Kernel, plan: Plan, block: str = "tl.program_id(0)") -> Lines:
    space = make_space(kernel, plan)
    lines = Lines()
    lines.add(f"zero = tl.zeros({space.shape(())}, tl.int32)")
    _outer_points(space, plan, lines, block)
    nests = NestPrinter(kernel, ValuePrinter(kernel, space, lines))
    for nest in kernel.nests:
        nests.nest(nest)
    return lines


def block_count(plan: Plan) -> sympy.Expr:
    """Number of blocks, over the kernel's parameters."""
    return sympy.Mul(*(side.blocks for side in plan.sides), *(loop.extent for loop in plan.rest))


def _outer_points(space: Space, plan: Plan, lines: Lines, block: str) -> None:
    """Lines that give a block its place among the outer points, the last dimension running fastest."""
    rest = block + (".to(tl.int64)" if plan.wide else "")
    names = [f"x{number}" for number, side in enumerate(plan.sides) if side.loops]
    for number, name in reversed(list(enumerate(names))):
        axis = space.axes[name]
        is_last = number == 0 and not plan.rest
        count = index_text(plan.sides[number].blocks, {})
        place = rest if is_last else f"({rest} % {count})"
        rest = f"({rest} // {count})"
        lines.add(f"{name} = {place} * {axis.block} + {space.arange(axis)}")
        if axis.is_masked:
            lines.add(f"{name}_in = {name} < {space.text(axis.extent)}")
        for line in space.apart(axis):
            lines.add(line)
    if plan.rest:
        lines.add(f"y = {rest}")
        for line in space.apart(space.axes["y"]):
            lines.add(line)
