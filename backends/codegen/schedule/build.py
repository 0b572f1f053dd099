"""Build: a group of stages becomes a kernel.

Place: after ``grouping``, before ``assemble``, which makes names canonical.
Input: a group, the layouts of tensors in memory, what the target is like, likely sizes. Output: a kernel whose buffers
have the names of tensors and whose parameters are size symbols.
Every step takes and returns a draft that is a legal kernel; what each decides is in the file it comes from.
Non-goals: what is fused (``grouping``) and where tensors live (``assemble``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import FloorDiv
from mixbackend.backends.codegen.ir.kernel import BufferParameter, Kernel, Nest, Store
from mixbackend.backends.codegen.ir.scalar import SCALAR_OPS, Apply, Expr, IndexValue, Read, walk
from mixbackend.backends.codegen.schedule.collapse import collapse_loops, collapse_nest, drop_single_points
from mixbackend.backends.codegen.schedule.draft import (
    Draft,
    accesses_of,
    inner_loops,
    largest_extent,
    nest_accesses,
    roots_of,
)
from mixbackend.backends.codegen.schedule.forward import forward_values
from mixbackend.backends.codegen.schedule.group import Group, Layout
from mixbackend.backends.codegen.schedule.hints import Hints
from mixbackend.backends.codegen.schedule.hoist import hoist_invariants, is_hoisted
from mixbackend.backends.codegen.schedule.loop_order import order_nest, order_outer
from mixbackend.backends.codegen.schedule.nests import merge_nests
from mixbackend.backends.codegen.schedule.pieces import cut_into_pieces, join_flat_pieces
from mixbackend.backends.codegen.schedule.sharing import share_common
from mixbackend.backends.codegen.schedule.statements import draft_of
from mixbackend.backends.codegen.schedule.tiles import raise_loops, tile_loops
from mixbackend.backends.codegen.schedule.vectorize import Costs, vector_of, with_vector
from mixbackend.backends.codegen.targets.target import TargetTraits


def build_kernel(group: Group, layouts: Mapping[str, Layout], traits: TargetTraits, hints: Hints) -> Kernel:
    """Decide how a group runs.

    Args:
        group: stages of one kernel.
        layouts: of every tensor that the group reads or defines.
        traits: of the target.
        hints: likely values of symbolic sizes.

    Raises:
        ValueError: the group breaks its invariants.
    """
    draft = forward_values(merge_nests(drop_single_points(draft_of(group, layouts))))
    draft = arrange(draft, traits, hints)
    return kernel_of(share(draft), traits)


def arrange(draft: Draft, traits: TargetTraits, hints: Hints) -> Draft:
    """Decide order, tiles, vectors, and what is computed before a loop."""
    draft = join_flat_pieces(collapse_loops(order_outer(raise_loops(draft), hints)))
    draft = tile_loops(draft, traits, hints)
    draft = cut_into_pieces(_nests(draft, collapse_nest), traits, hints)
    draft = _vectorised(draft, traits, hints)
    draft = forward_values(merge_nests(hoist_invariants(draft, hints), movable=is_hoisted))
    return _vectorised(draft, traits, hints)


def _nests(draft: Draft, function: Callable[[Nest], Nest]) -> Draft:
    return replace(draft, nests=tuple(map(function, draft.nests)))


def _vectorised(draft: Draft, traits: TargetTraits, hints: Hints) -> Draft:
    """Choose the vector of every nest that has none, then put its loops in order."""
    costs = Costs.of(traits, draft.dtypes, hints)

    def finished(nest: Nest) -> Nest:
        return order_nest(nest if vector_of(nest) is not None else with_vector(nest, costs), hints)

    return _nests(draft, finished)


def share(draft: Draft) -> Draft:
    """Compute equal expressions of a point once."""
    names = itertools.count()

    def fresh() -> str:
        return f"t{next(names)}"

    def shared(nest: Nest) -> Nest:
        return replace(nest, body=share_common(nest.body, fresh), finish=share_common(nest.finish, fresh))

    return _nests(draft, shared)


# -- the kernel ---------------------------------------------------------------------------------------------------


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


def _symbols(draft: Draft) -> set[sympy.Symbol]:
    """Sizes and numbers: every symbol that is neither a loop index nor bound."""
    loops = [*draft.outer, *(loop for nest in draft.nests for loop in inner_loops(nest))]
    expressions = [loop.extent for loop in loops] + [item.elements for item in draft.scratch]
    own = {loop.index for loop in loops}
    for nest in draft.nests:
        for item in (*nest.body, *nest.finish):
            if isinstance(item, Store):
                expressions.append(item.offset)
                own |= {symbol for symbol, _ in item.bindings}
            for node in walk(*roots_of(item)):
                expressions += _positions(node)
                own |= {symbol for symbol, _ in node.bindings} if isinstance(node, Read) else set()
    return {symbol for item in expressions for symbol in item.free_symbols} - own


def _positions(node: Expr) -> list[sympy.Expr]:
    if isinstance(node, Read):
        return [node.offset]
    return [node.expression] if isinstance(node, IndexValue) else []


def work_of(draft: Draft, traits: TargetTraits) -> sympy.Expr:
    """Rough number of vector instructions of one call."""
    outer = sympy.Mul(*map(largest_extent, draft.outer))
    total = sympy.Integer(0)
    for nest in draft.nests:
        points = sympy.Mul(*map(largest_extent, inner_loops(nest)))
        total += outer * points * _instructions(nest, draft.dtypes)
    lanes = max(traits.vector_bytes // 4, 1)
    return FloorDiv(sympy.expand(total) + lanes - 1, sympy.Integer(lanes))


def _instructions(nest: Nest, dtypes: Mapping[str, torch.dtype]) -> int:
    """Of one vector of points; as many times more where there is no vector is left out: it is rough."""
    touched = sum(max(dtypes[access.buffer].itemsize // 4, 1) for access in accesses_of(nest.body))
    roots = [root for item in nest.body for root in roots_of(item)]
    return int(touched + sum(SCALAR_OPS[node.op].cost for node in walk(*roots) if isinstance(node, Apply)))
