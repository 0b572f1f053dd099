"""Schedule: from stages to a program, pass by pass.

Place: between ``lower`` and a target.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import sympy

from mixbackend.backends.codegen.ir.kernel import AnyKernel
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.ir.stages import GraphOutput, Stage, StageGraph, StridedInput, Template, destinations
from mixbackend.backends.codegen.ir.templates import PRODUCT
from mixbackend.backends.codegen.schedule.assemble import assemble
from mixbackend.backends.codegen.schedule.blocks import build_blocks
from mixbackend.backends.codegen.schedule.build import build_kernel
from mixbackend.backends.codegen.schedule.checks import without_checks
from mixbackend.backends.codegen.schedule.equal_groups import EqualGroups
from mixbackend.backends.codegen.schedule.finished_products import finish_products
from mixbackend.backends.codegen.schedule.group import Group, Layout
from mixbackend.backends.codegen.schedule.grouping import choose_layouts, group_stages
from mixbackend.backends.codegen.schedule.hints import Hints
from mixbackend.backends.codegen.schedule.in_place import in_place
from mixbackend.backends.codegen.schedule.joined import join_concatenations
from mixbackend.backends.codegen.schedule.launches import launches
from mixbackend.backends.codegen.schedule.packed_products import pack_products
from mixbackend.backends.codegen.schedule.rewrite import loads_of
from mixbackend.backends.codegen.schedule.simplify import simplify
from mixbackend.backends.codegen.schedule.single_rows import sum_single_rows
from mixbackend.backends.codegen.schedule.split import split_reductions
from mixbackend.backends.codegen.schedule.split_loops import split_loops
from mixbackend.backends.codegen.schedule.templates import template_kernel
from mixbackend.backends.codegen.schedule.write_inputs import place_writes
from mixbackend.backends.codegen.targets.target import TargetTraits


def schedule(
    graph: StageGraph,
    traits: TargetTraits,
    hints: Mapping[sympy.Symbol, int] | None = None,
    fuel: int | None = None,
) -> Program:
    """Decide what is fused, in which order loops run, and where tensors live.

    Args:
        graph: of one region.
        traits: of the target that will compile the kernels.
        hints: likely values of symbolic sizes.
        fuel: number of fusions allowed; ``None`` for all. Used to find the fusion behind a wrong result.
    """
    hints = hints or {}
    graph = graph if traits.tells else without_checks(graph)
    packs = PRODUCT in traits.templates
    graph = pack_products(graph, traits.vector_bytes) if packs else graph
    longest_column = None if traits.blocks is None else traits.blocks.resident // traits.blocks.least_columns
    graph = sum_single_rows(join_concatenations(graph)) if traits.blocks else graph
    graph, refusals = simplify(graph, hints, longest_column)
    graph = split_loops(place_writes(graph))
    graph = finish_products(graph) if packs else graph
    cut = split_reductions(graph, choose_layouts(graph, hints), traits.parallel_width, hints, traits.blocks)
    # What a cut fold reads is made in pieces as well, and can be made by its kernel.
    graph = split_loops(cut) if traits.blocks is not None and cut.stages != graph.stages else cut
    layouts = choose_layouts(graph, hints)
    groups, apart = group_stages(graph, layouts, traits, fuel, hints)
    homes = destinations(graph)
    equal, overwritten = EqualGroups(partial(_kernels, traits=traits, hints=hints)), frozenset(homes.values())
    built = [
        (in_place(kernel, homes, traits), _origins(group))
        for group in groups
        for kernel in equal.kernels(group, layouts, overwritten)
    ]
    kernels = [(kernel, origins) for kernel, origins in built if kernel is not None]
    loads_of.cache_clear()
    memory = {item.name for item in graph.inputs if isinstance(item, StridedInput)}
    memory |= {item.tensor for item in graph.outputs if isinstance(item, GraphOutput)}
    beside = 1 if traits.blocks is None else traits.blocks.beside
    order = launches([kernel for kernel, _ in kernels], layouts, frozenset(memory), beside)
    return assemble(graph, [[kernels[place] for place in part] for part in order], layouts, (*refusals, *apart))


def _kernels(
    group: Group, layouts: Mapping[str, Layout], overwritten: Collection[str], traits: TargetTraits, hints: Hints
) -> tuple[AnyKernel, ...]:
    """One kernel of loops and vectors; of blocks as many as the threads of all blocks have to wait for each other."""
    first = group.stages[0]
    if isinstance(first, Template):
        return (template_kernel(first, layouts),)
    if traits.blocks is None:
        return (build_kernel(group, layouts, traits, hints),)
    return build_blocks(group, layouts, traits, hints, overwritten)


def _origins(group: Group) -> tuple[str, ...]:
    stages: tuple[Stage, ...] = group.stages
    return tuple(dict.fromkeys(origin for stage in stages for origin in stage.origins))
