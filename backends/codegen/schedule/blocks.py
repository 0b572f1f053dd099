"""Blocks: a group of stages becomes kernels for a target with threads that work on blocks of points.

Place: instead of ``build`` for targets with ``traits.blocks``; ``assemble`` follows. Nothing here is tiled, vectorised
or put into strips: how many points a block has, and which thread takes which, is the target's business.
Input: a group. Output: kernels with points of blocks as outer loops. A nest has either kept loops, or reduced ones, or
one ordered loop: a block walks one row of points, never a row of rows.
Invariants: scratch is a value per outer point, or per point of a row: written once by one nest, and read by others at
the very point of a row of the same form. Rows that are too long for registers have no scratch: what it held is computed
again where it is read. Groups that cannot be had in this form become a kernel per stage, with their tensors in memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.grammar import loops_of, rewrite, walk
from mixbackend.backends.codegen.ir.indices import flatten
from mixbackend.backends.codegen.ir.kernel import Carry, Kernel, KernelLoop, Let, Nest, Store
from mixbackend.backends.codegen.ir.scalar import Expr, Local, Read
from mixbackend.backends.codegen.ir.stages import Scatter, Stage
from mixbackend.backends.codegen.schedule.build import share
from mixbackend.backends.codegen.schedule.collapse import collapse_loops, drop_single_points
from mixbackend.backends.codegen.schedule.draft import Draft, accesses_of, has_carry, nest_accesses
from mixbackend.backends.codegen.schedule.finished import collect_strides, kernel_of
from mixbackend.backends.codegen.schedule.forward import drop_unused, forward_values
from mixbackend.backends.codegen.schedule.group import Group, Layout
from mixbackend.backends.codegen.schedule.hints import Hints
from mixbackend.backends.codegen.schedule.loop_order import order_nest, order_outer
from mixbackend.backends.codegen.schedule.nests import merge_nests
from mixbackend.backends.codegen.schedule.rewrite import with_indices
from mixbackend.backends.codegen.schedule.statements import draft_of
from mixbackend.backends.codegen.schedule.tiles import raise_loops
from mixbackend.backends.codegen.targets.target import Blocks, TargetTraits

_ASSUMED = 1024
"""Size of loops that are not known."""


def build_blocks(
    group: Group,
    layouts: Mapping[str, Layout],
    traits: TargetTraits,
    hints: Hints,
    overwritten: Collection[str] = (),
) -> tuple[Kernel, ...]:
    """Decide how a group runs.

    Args:
        group: stages of one kernel; a scatter is alone.
        layouts: of every tensor that the group reads or defines.
        traits: of the target, with ``blocks``.
        hints: likely values of symbolic sizes.
        overwritten: inputs that the program writes into.
    """
    assert traits.blocks is not None
    whole = _together(group, layouts, traits.blocks, hints, overwritten)
    if whole is not None:
        return (_finished(whole, traits, frozenset()),)
    kernels: list[Kernel] = []
    for stage in group.stages:
        written: frozenset[str] = frozenset()
        for draft in _apart(stage, layouts, hints):
            kernels.append(_finished(draft, traits, written))
            written |= {item.name for item in kernels[-1].buffers if item.access != "read"}
    return tuple(kernels)


def _finished(draft: Draft, traits: TargetTraits, written: frozenset[str]) -> Kernel:
    """The draft as a kernel; ``written`` are tensors that an earlier kernel of the same stage began to write."""
    kernel = kernel_of(collect_strides(share(draft)), traits)
    buffers = (replace(item, access="update") if item.name in written else item for item in kernel.buffers)
    return replace(kernel, buffers=tuple(buffers))


def is_resident(draft: Draft, blocks: Blocks) -> bool:
    """Whether all rows that a block walks are of a known size that registers hold."""
    rows = [sympy.Mul(*(loop.extent for loop in loops_of(nest))) for nest in draft.nests]
    columns = blocks.least_columns if are_strided(draft.outer, draft.nests) else 1
    return all(row.is_Integer and int(row) * columns <= blocks.resident for row in rows)


def _together(
    group: Group, layouts: Mapping[str, Layout], blocks: Blocks, hints: Hints, overwritten: Collection[str]
) -> Draft | None:
    """The group as one draft; ``None`` if it has no such form."""
    if any(isinstance(stage, Scatter) for stage in group.stages):
        return None
    draft: Draft | None = _ordered(forward_values(merge_nests(drop_single_points(draft_of(group, layouts)))), hints)
    assert draft is not None
    if not all(map(_is_row, draft.nests)):
        return None
    rows = [item.name for item in draft.scratch if item.elements != 1]
    if rows and not is_resident(draft, blocks):
        draft = _computed_again(draft, rows, frozenset(overwritten))
    if draft is None or not all(_is_met_at_its_points(draft, item.name) for item in draft.scratch):
        return None
    return draft


def _apart(stage: Stage, layouts: Mapping[str, Layout], hints: Hints) -> Iterator[Draft]:
    """Drafts of one stage, each with one nest, on tensors in memory."""
    whole = drop_single_points(draft_of(Group((), (stage,), frozenset()), layouts))
    for nest in whole.nests:
        yield _ordered(replace(whole, nests=(nest,)), hints)


def _ordered(draft: Draft, hints: Hints) -> Draft:
    """Loops by their steps in memory, merged where they walk it as one. Updates that may meet do so in any order."""
    nests = tuple(_any_order(nest) for nest in draft.nests)
    draft = raise_loops(replace(draft, nests=nests))
    draft = collapse_loops(order_outer(draft, hints))
    return replace(draft, nests=tuple(order_nest(nest, hints) for nest in draft.nests))


def _any_order(nest: Nest) -> Nest:
    if has_carry(nest):
        return nest
    loops = tuple(replace(loop, mode="serial") if loop.mode == "ordered" else loop for loop in nest.loops)
    meeting = loops != nest.loops
    body = (
        replace(item, atomic=True) if meeting and isinstance(item, Store) and _combines(item) else item
        for item in nest.body
    )
    return replace(nest, loops=loops, body=tuple(body))


def _combines(store: Store) -> bool:
    return store.mode != "set"


def _is_row(nest: Nest) -> bool:
    if has_carry(nest):
        return len(nest.loops) == 1 and not nest.reduced
    return not (nest.loops and nest.reduced)


def are_strided(outer_loops: Sequence[KernelLoop], nests: Sequence[Nest]) -> bool:
    """Whether most accesses are contiguous along an outer loop, and not along a row.

    Those of the most elements count: a statistic of each row is small beside what is folded.
    """
    outer = {loop.index: loop.extent for loop in outer_loops}
    votes: dict[int, int] = {}
    for nest in nests:
        inner = {loop.index: loop.extent for loop in loops_of(nest)}
        for access in nest_accesses(nest):
            used = access.offset.free_symbols & (inner.keys() | outer.keys())
            if not used & inner.keys() or not used & outer.keys():
                continue
            elements = math.prod(_extent(inner[index] if index in inner else outer[index]) for index in used)
            steps = [index for index in used if access.stride(index) == 1]
            vote = sum(1 if index in outer else -1 for index in steps)
            votes[elements] = votes.get(elements, 0) + vote
    return bool(votes) and votes[max(votes)] > 0


def _extent(size: sympy.Expr) -> int:
    return int(size) if size.is_Integer else _ASSUMED


# -- scratch ------------------------------------------------------------------------------------------------------


def _position(nest: Nest) -> sympy.Expr:
    loops = loops_of(nest)
    return flatten((loop.index for loop in loops), (loop.extent for loop in loops))


def _is_met_at_its_points(draft: Draft, name: str) -> bool:
    """Whether scratch is written by one nest, and touched once per outer point, or at the same point of equal rows."""
    touched = [(nest, access) for nest in draft.nests for access in nest_accesses(nest) if access.buffer == name]
    writers = [nest for nest, access in touched if access.write]
    if len(writers) != 1 or any(access.dynamic for _, access in touched):
        return False
    if all(access.offset == 0 for _, access in touched):
        # Once per outer point: after a fold, or where there is no row.
        return writers[0].finish != () or not loops_of(writers[0])
    rows = {tuple(loop.extent for loop in loops_of(nest)) for nest, _ in touched}
    return len(rows) == 1 and all(access.offset == _position(nest) for nest, access in touched)


def _computed_again(draft: Draft, names: Iterable[str], overwritten: frozenset[str]) -> Draft | None:
    """The draft without these scratches: what they held is computed where it is read; ``None`` if it cannot be."""
    order = [item.buffer for nest in draft.nests for item in nest_accesses(nest) if item.write]
    for name in sorted(names, key=order.index):
        replaced = _without(draft, name, overwritten)
        if replaced is None:
            return None
        draft = replaced
    return forward_values(drop_unused(draft))


def _store_of(nest: Nest, name: str) -> Store | None:
    return next((item for item in nest.body if isinstance(item, Store) and item.buffer == name), None)


def _without(draft: Draft, name: str, overwritten: frozenset[str]) -> Draft | None:
    """The draft with one scratch computed again in every nest that reads it."""
    writers = [nest for nest in draft.nests if any(item.write and item.buffer == name for item in nest_accesses(nest))]
    maker = writers[0]
    store = _store_of(maker, name)
    if len(writers) != 1 or store is None or store.mask is not None or store.offset != _position(maker):
        return None
    value = _spelled_out(maker, store)
    written = {item.buffer for nest in draft.nests for item in nest_accesses(nest) if item.write}
    stable = {item.name for item in draft.scratch if item.elements == 1}
    changing = (written - stable) | overwritten
    if value is None or any(isinstance(node, Read) and node.buffer in changing for node in walk(value)):
        return None
    nests = []
    for nest in draft.nests:
        made = nest if nest is maker else _recomputing(nest, name, value, loops_of(maker))
        if made is None:
            return None
        nests.append(made)
    return replace(draft, nests=tuple(nests))


def _spelled_out(nest: Nest, store: Store) -> Expr | None:
    """What a store writes, with the names of its nest spelled out; ``None`` where one is a running fold."""
    if any(isinstance(item, Carry) for item in nest.body):
        return None
    values: dict[str, Expr] = {}

    def node(item: Expr) -> Expr:
        return values.get(item.name, item) if isinstance(item, Local) else item

    for item in nest.body:
        if isinstance(item, Let):
            values[item.name] = rewrite(item.value, node)
    made = rewrite(store.value, node)
    return None if any(isinstance(part, Local) for part in walk(made)) else made


def _recomputing(nest: Nest, name: str, value: Expr, loops: tuple[KernelLoop, ...]) -> Nest | None:
    reads = [item for item in accesses_of((*nest.body, *nest.finish)) if item.buffer == name]
    if not reads:
        return nest
    own = loops_of(nest)
    same = [loop.extent for loop in own] == [loop.extent for loop in loops]
    if not same or any(item.offset != _position(nest) for item in reads):
        return None
    moved = {old.index: new.index for old, new in zip(loops, own, strict=True)}
    again = with_indices(value, moved, {})

    def node(item: Expr) -> Expr:
        return again if isinstance(item, Read) and item.buffer == name else item

    return replace(nest, body=tuple(rewrite(item, node) for item in nest.body))
