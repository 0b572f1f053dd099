"""Build: a group of stages becomes a kernel.

Place: after ``grouping``, before ``assemble``, which makes names canonical.
Input: a group, the layouts of tensors in memory, what the target is like, likely sizes. Output: a kernel with names of
tensors for buffers and with size symbols as parameters.
Every step takes and returns a draft that is a legal kernel; what each decides is in the file it comes from.
Non-goals: what is fused (``grouping``) and where tensors live (``assemble``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

from mixbackend.backends.codegen.ir.kernel import Kernel, Nest
from mixbackend.backends.codegen.schedule.collapse import collapse_loops, collapse_nest, drop_single_points
from mixbackend.backends.codegen.schedule.draft import Draft
from mixbackend.backends.codegen.schedule.finished import collect_strides, kernel_of
from mixbackend.backends.codegen.schedule.forward import forward_values
from mixbackend.backends.codegen.schedule.group import Group, Layout
from mixbackend.backends.codegen.schedule.hints import Hints
from mixbackend.backends.codegen.schedule.loop_invariant_motion import hoist_invariants, is_hoisted
from mixbackend.backends.codegen.schedule.loop_order import order_nest, order_outer
from mixbackend.backends.codegen.schedule.nests import merge_nests
from mixbackend.backends.codegen.schedule.parallel_nest_fusion import fuse_flat_nests, fuse_parallel_nests
from mixbackend.backends.codegen.schedule.sharing import share_common
from mixbackend.backends.codegen.schedule.statements import draft_of
from mixbackend.backends.codegen.schedule.tiles import raise_loops, tile_loops
from mixbackend.backends.codegen.schedule.vectorize import Costs, vector_of, with_vector
from mixbackend.backends.codegen.schedule.window_unrolling import unroll_windows
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
    return kernel_of(collect_strides(share(draft)), traits)


def arrange(draft: Draft, traits: TargetTraits, hints: Hints) -> Draft:
    """Decide order, tiles, vectors, and what is computed before a loop."""
    draft = fuse_flat_nests(collapse_loops(order_outer(raise_loops(draft), hints)))
    draft = tile_loops(draft, traits, hints)
    draft = fuse_parallel_nests(_nests(draft, collapse_nest), traits, hints)
    draft = _vectorised(draft, traits, hints)
    draft = forward_values(merge_nests(hoist_invariants(draft, hints), movable=is_hoisted))
    return unroll_windows(_vectorised(draft, traits, hints), traits)


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
        return f"%t{next(names)}"

    def shared(nest: Nest) -> Nest:
        return replace(nest, body=share_common(nest.body, fresh), finish=share_common(nest.finish, fresh))

    return _nests(draft, shared)
