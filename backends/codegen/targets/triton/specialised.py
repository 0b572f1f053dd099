"""Specialised kernels: what is known of sizes and strides when compiling becomes numbers in the code.

Place: before ``plan``. Input: a canonical kernel and the values of its parameters, ``None`` for those that depend on
symbolic sizes. Output: a kernel over the parameters that are left.
Numbers let Triton see which addresses are aligned and which masks are always true; kernels of equal sizes are equal.
Rows of nests with the same extents get the same indices, so that what one nest loaded is known to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.grammar import all_index_expressions, loops_of, map_loops
from mixbackend.backends.codegen.ir.kernel import Kernel, KernelLoop, Nest
from mixbackend.backends.codegen.schedule.rewrite import renamed, with_indices

Values = Mapping[sympy.Symbol, sympy.Expr]


def specialised(kernel: Kernel, given: Sequence[int | None]) -> Kernel:
    """The kernel with numbers for the parameters that are known; its work is not kept."""
    pairs = zip(kernel.parameters, given, strict=True)
    values = {symbol: sympy.Integer(value) for symbol, value in pairs if value is not None}
    outer = tuple(_loop(loop, values) for loop in kernel.outer)
    nests = _with_common_rows([_nest(nest, values) for nest in kernel.nests])
    scratch = tuple(replace(item, elements=item.elements.xreplace(values)) for item in kernel.scratch)
    used = _symbols(outer, nests)
    parameters = tuple(symbol for symbol in kernel.parameters if symbol in used)
    return replace(kernel, parameters=parameters, outer=outer, nests=nests, scratch=scratch, work=sympy.Integer(0))


def _loop(loop: KernelLoop, values: Values) -> KernelLoop:
    return replace(loop, extent=loop.extent.xreplace(values))


def _nest(nest: Nest, values: Values) -> Nest:
    return map_loops(with_indices(nest, values, {}), lambda loops: tuple(_loop(loop, values) for loop in loops))


def _with_common_rows(nests: Sequence[Nest]) -> tuple[Nest, ...]:
    known: dict[tuple[sympy.Expr, ...], tuple[sympy.Symbol, ...]] = {}
    made = []
    for nest in nests:
        loops = loops_of(nest)
        own = tuple(loop.index for loop in loops)
        shared = known.setdefault(tuple(loop.extent for loop in loops), own)
        names = dict(zip(own, shared, strict=True))
        made.append(renamed(nest, names))
    return tuple(made)


def _symbols(outer: Sequence[KernelLoop], nests: Sequence[Nest]) -> set[sympy.Symbol]:
    loops = [*outer, *(loop for nest in nests for loop in loops_of(nest))]
    expressions = [loop.extent for loop in loops]
    expressions += all_index_expressions(*nests)
    return {symbol for expression in expressions for symbol in expression.free_symbols}
