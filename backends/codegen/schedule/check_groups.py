"""Check groups: what ``grouping`` promises and ``build`` relies on.

Place: run by tests, and wherever checks are on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import sympy

from mixbackend.backends.codegen.ir.grammar import loops_of
from mixbackend.backends.codegen.ir.stages import (
    Concatenate,
    GraphOutput,
    Scan,
    Scatter,
    Stage,
    StageGraph,
    Template,
    destinations,
    targets_of,
)
from mixbackend.backends.codegen.schedule.group import Group
from mixbackend.backends.codegen.schedule.rewrite import loads_of
from mixbackend.contracts import IrError


def check_groups(graph: StageGraph, groups: Sequence[Group]) -> None:
    """Hold groups against the graph they were made of.

    Raises:
        IrError: with everything that is wrong: a stage that is missing, twice or changed; a read before its write;
            an input read after it was written into; an outer loop that a stage does not keep, or that different outer
            points would race on; a tensor of the group read at another outer point; a private tensor that others need.
    """
    problems = [*_coverage(graph, groups), *_order(graph, groups), *_privacy(graph, groups)]
    for group in groups:
        problems.extend(_outer_loops(group))
        problems.extend(_outer_points(group))
    if problems:
        raise IrError("; ".join(problems), where="\n".join(str(stage) for group in groups for stage in group.stages))


def _coverage(graph: StageGraph, groups: Iterable[Group]) -> Iterator[str]:
    wanted = {targets_of(stage): stage for stage in graph.stages}
    for group in groups:
        for stage in group.stages:
            original = wanted.pop(targets_of(stage), None)
            if original is None:
                yield f"{targets_of(stage)} is no stage of the graph, or is there twice"
            elif type(original) is not type(stage) or _sizes(original) != _sizes(stage):
                yield f"{targets_of(stage)} has changed"
    yield from (f"{names} is in no group" for names in wanted)


def _sizes(stage: Stage) -> list[sympy.Expr]:
    return [loop.size for loop in loops_of(stage)]


def _order(graph: StageGraph, groups: Iterable[Group]) -> Iterator[str]:
    unmade = {name for stage in graph.stages for name in targets_of(stage)}
    for group in groups:
        for stage in group.stages:
            early = sorted({load.tensor for load in loads_of(stage)} & unmade)
            yield from (f"{targets_of(stage)} reads {name} before it is made" for name in early)
            unmade.difference_update(targets_of(stage))
    yield from _late_reads(graph, groups)


def _late_reads(graph: StageGraph, groups: Iterable[Group]) -> Iterator[str]:
    """Reads of what an input held before it was written into, by other stages of the same kernel or later ones."""
    written = destinations(graph)
    gone: set[str] = set()
    for group in groups:
        mine = {written[name]: stage for stage in group.stages for name in targets_of(stage) if name in written}
        gone.update(mine)
        for stage in group.stages:
            late = {
                load.tensor for load in loads_of(stage) if load.tensor in gone and mine.get(load.tensor) is not stage
            }
            yield from (f"{targets_of(stage)} reads {name}, which is written into" for name in sorted(late))


def _privacy(graph: StageGraph, groups: Iterable[Group]) -> Iterator[str]:
    outputs = {output.tensor for output in graph.outputs if isinstance(output, GraphOutput)}
    for group in groups:
        made = {name for stage in group.stages for name in targets_of(stage)}
        yield from (f"{name} is private to a group that does not make it" for name in sorted(group.private - made))
        yield from (f"{name} is private and an output" for name in sorted(group.private & outputs))
        for other in groups:
            read = {load.tensor for stage in other.stages for load in loads_of(stage)}
            if other is not group:
                yield from (f"{name} is private and read elsewhere" for name in sorted(group.private & read))


def _outer_loops(group: Group) -> Iterator[str]:
    outer = {loop.index: loop.size for loop in group.outer}
    if len(outer) < len(group.outer):
        yield f"an outer loop is there twice: {group.outer}"
    for stage in group.stages:
        dimensions = _dimensions(stage)
        yield from (f"{targets_of(stage)} has no kept loop {index}" for index in outer if index not in dimensions)
        for loop in loops_of(stage):
            if loop.index in outer and loop.size != outer[loop.index]:
                yield f"{targets_of(stage)} has {loop.size} values of {loop.index}, the group {outer[loop.index]}"


def _outer_points(group: Group) -> Iterator[str]:
    outer = {loop.index for loop in group.outer}
    places: dict[str, Mapping[sympy.Symbol, int]] = {}
    for stage in group.stages:
        for load in loads_of(stage):
            for index, dimension in places.get(load.tensor, {}).items():
                if load.index[dimension] != index:
                    yield f"{targets_of(stage)} reads {load.tensor} at {load.index[dimension]} instead of {index}"
        kept = {index: place for index, place in _dimensions(stage).items() if index in outer}
        places.update((name, kept) for name in targets_of(stage))


def _dimensions(stage: Stage) -> dict[sympy.Symbol, int]:
    """Loops with values that write different elements and carry nothing along, with the dimension of each index."""
    if isinstance(stage, Scatter):
        updates = [loop.index for loop in stage.loops]
        return {
            loop.index: place
            for place, loop in enumerate(stage.target_loops)
            if loop.index == stage.destination[place] and loop.index in updates
        }
    if isinstance(stage, Template):
        return {}
    whole = stage.axis if isinstance(stage, (Scan, Concatenate)) else None
    return {loop.index: place for place, loop in enumerate(stage.loops) if place != whole}
