"""Groups put together by hand, built, checked, run by the interpreter and held against their stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from drawn_graphs import contiguous, cpu_traits, random_inputs

from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.check import check_kernel, check_program
from mixbackend.backends.codegen.ir.kernel import Kernel, KernelLoop, Nest
from mixbackend.backends.codegen.ir.stages import GraphOutput, Scatter, StageGraph, StridedInput, targets_of
from mixbackend.backends.codegen.schedule.assemble import assemble
from mixbackend.backends.codegen.schedule.build import build_kernel
from mixbackend.backends.codegen.schedule.group import Group, Layout
from mixbackend.backends.codegen.schedule.rewrite import renamed

Sizes = Mapping[sympy.Symbol, int]


def layouts_of(graph: StageGraph) -> dict[str, Layout]:
    """Inputs and outputs as they are given, everything else row-major."""
    given = {item.name: item.strides for item in graph.inputs if isinstance(item, StridedInput)}
    given.update({item.tensor: item.strides for item in graph.outputs if isinstance(item, GraphOutput)})
    return {name: Layout(kind, given.get(name, contiguous(kind.sizes))) for name, kind in graph.types}


def one_group(graph: StageGraph, outer: Sequence[Sequence[int]]) -> Group:
    """All stages, with the loops at the given places shared: one tuple of places per stage."""
    first = [graph.stages[0].loops[place] for place in outer[0]]
    stages = []
    for stage, places in zip(graph.stages, outer, strict=True):
        pairs = {stage.loops[place].index: loop.index for place, loop in zip(places, first, strict=True)}
        if isinstance(stage, Scatter):
            ends = zip(stage.destination, stage.target_loops, strict=True)
            pairs.update({loop.index: position for position, loop in ends if position in pairs})
        stages.append(renamed(stage, pairs))
    leaving = {item.tensor for item in graph.outputs if isinstance(item, GraphOutput)}
    private = {name for stage in stages for name in targets_of(stage) if name not in leaving}
    return Group(tuple(first), tuple(stages), frozenset(private))


def build(
    graph: StageGraph, outer: Sequence[Sequence[int]], sizes: Sizes | None = None, width: int = 16, **traits: Any
) -> Kernel:
    """The kernel of a graph, after it was seen to compute the same as its stages."""
    layouts = layouts_of(graph)
    kernel = build_kernel(one_group(graph, outer), layouts, cpu_traits(parallel_width=width, **traits), sizes or {})
    check_kernel(kernel)
    program = assemble(graph, [[(kernel, ())]], layouts, ())
    check_program(program)
    inputs = random_inputs(graph, dict(sizes or {}))
    for one, other in zip(interpret_stages(graph, inputs), interpret_program(program, inputs), strict=True):
        assert (one.shape, one.stride()) == (other.shape, other.stride())
        torch.testing.assert_close(other, one, equal_nan=True)
    return kernel


def modes(loops: Sequence[KernelLoop]) -> list[str]:
    """How loops run, with their numbers of values: ``vector 64``."""
    return [f"{loop.mode} {loop.extent}" for loop in loops]


def shape(nest: Nest) -> tuple[list[str], list[str]]:
    """How the loops of a nest run: kept ones, reduced ones."""
    return modes(nest.loops), modes(nest.reduced)
