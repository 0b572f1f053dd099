"""Finished: a draft with nothing left to decide becomes a kernel.

Place: last step of ``build``. Input: a draft. Output: a kernel with names of tensors for buffers, in order of use, and
with the size symbols in it as parameters, by name.
Invariants: numbers are the symbols that are not integers. ``work`` is an estimate over sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import loops_of, reindex
from mixbackend.backends.codegen.ir.indices import FloorDiv
from mixbackend.backends.codegen.ir.kernel import BufferParameter, Kernel, Nest
from mixbackend.backends.codegen.ir.scalar import cost_of
from mixbackend.backends.codegen.schedule.draft import Draft, accesses_of, indices_of, largest_extent, nest_accesses
from mixbackend.backends.codegen.targets.target import TargetTraits


def collect_strides(draft: Draft) -> Draft:
    """Write every index once in an offset, times its whole stride: ``i*a + i*b`` is ``i*(a + b)``."""
    loops = [*draft.outer, *(loop for nest in draft.nests for loop in loops_of(nest))]
    indices = frozenset(loop.index for loop in loops)

    def collected(offset: sympy.Expr) -> sympy.Expr:
        strides: dict[sympy.Expr, sympy.Expr] = {}
        for term in sympy.Add.make_args(offset):
            stride, index = term.as_independent(*(term.free_symbols & indices), as_Add=False)
            strides[index] = strides.get(index, sympy.Integer(0)) + stride
        return sympy.Add(*(stride * index for index, stride in strides.items()))

    return replace(draft, nests=tuple(reindex(nest, collected) for nest in draft.nests))


def kernel_of(draft: Draft, traits: TargetTraits) -> Kernel:
    """The draft as a kernel: buffers in order of use, parameters by name."""
    work = work_of(draft, traits)
    symbols = _symbols(draft) | work.free_symbols
    parameters = sorted((item for item in symbols if item.is_integer), key=str)
    numbers = sorted((item for item in symbols if not item.is_integer), key=str)
    return Kernel(
        parameters=tuple(parameters),
        numbers=tuple(numbers),
        buffers=_buffers(draft),
        scratch=draft.scratch,
        outer=draft.outer,
        nests=draft.nests,
        work=work,
    )


def _buffers(draft: Draft) -> tuple[BufferParameter, ...]:
    written: dict[str, bool] = {}
    for nest in draft.nests:
        for access in nest_accesses(nest):
            written[access.buffer] = written.get(access.buffer, False) or access.write
    private = draft.scratch_names
    return tuple(
        BufferParameter(name, draft.dtypes[name], "write" if is_written else "read")
        for name, is_written in written.items()
        if name not in private
    )


def _symbols(draft: Draft) -> frozenset[sympy.Symbol]:
    """Sizes and numbers: every symbol that is neither a loop index nor bound."""
    loops = [*draft.outer, *(loop for nest in draft.nests for loop in loops_of(nest))]
    expressions = [loop.extent for loop in loops] + [item.elements for item in draft.scratch]
    used = indices_of(*draft.nests).union(*(item.free_symbols for item in expressions))
    return used.difference(loop.index for loop in loops)


def work_of(draft: Draft, traits: TargetTraits) -> sympy.Expr:
    """Rough number of vector instructions of one call."""
    outer = sympy.Mul(*map(largest_extent, draft.outer))
    total = sympy.Integer(0)
    for nest in draft.nests:
        points = sympy.Mul(*map(largest_extent, loops_of(nest)))
        total += outer * points * _instructions(nest, draft.dtypes)
    lanes = max(traits.vector_bytes // 4, 1)
    return FloorDiv(sympy.expand(total) + lanes - 1, sympy.Integer(lanes))


def _instructions(nest: Nest, dtypes: Mapping[str, torch.dtype]) -> int:
    """Of one vector of points; as many times more where there is no vector is left out: it is rough."""
    touched = sum(max(dtypes[access.buffer].itemsize // 4, 1) for access in accesses_of(nest.body))
    return int(touched + cost_of(*nest.body))
