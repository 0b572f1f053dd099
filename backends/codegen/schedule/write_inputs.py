"""Write inputs: what a graph leaves in memory of its inputs is written there at the right time.

Place: after ``simplify``, before ``split_loops``; ``grouping`` asks it for the order, ``in_place`` follows much later.
Input: a ``StageGraph`` in which stages that nothing reads make the writes into inputs, at the end. Output: the same,
where possible without a copy: the stage that computes the value makes the write, wherever nothing that runs after it,
and no other point of its own, needs what the input held before. Example (a running mean)::

    t[i] = 0.9 * x[i] + 0.1 * m[i]; x.new[i] = t[i]      ->      x.new[i] = 0.9 * x[i] + 0.1 * m[i]

Invariants: those of ``StageGraph``: until kernels have their memory, ``x`` is the value before and ``x.new`` the one
after, two names, so that no pass has to know that they are one piece of memory.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

from mixbackend.backends.codegen.ir.grammar import expressions_of, walk
from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.scalar import Expr, Load
from mixbackend.backends.codegen.ir.stages import (
    GraphOutput,
    Loop,
    Map,
    Scatter,
    Stage,
    StageGraph,
    destinations,
    targets_of,
)
from mixbackend.backends.codegen.schedule.checks import checked_first, tells
from mixbackend.backends.codegen.schedule.rewrite import loads_of, rename_targets, rename_tensors
from mixbackend.backends.codegen.schedule.simplify import copied, is_at


def place_writes(graph: StageGraph) -> StageGraph:
    """Let the stage that computes a value write it where that is safe, copy the value at the end where it is not."""
    written = destinations(graph)
    if not written:
        return graph
    graph = checked_first(graph)
    for tensor, name in written.items():
        direct = _written_directly(graph, tensor, name)
        is_safe = direct is not None and _in_order(direct) is not None
        graph = direct if is_safe and direct is not None else _written_last(graph, tensor)
    stages = _in_order(graph)
    assert stages is not None, "a copy at the end waits for all, and nothing waits for it"
    return replace(graph, stages=stages)


def readers_before_writers(graph: StageGraph) -> dict[int, tuple[int, ...]]:
    """For each stage that writes into an input, the others that read what it held before, by place in the graph.

    What tells of values out of range counts as reading all of them: eager is asked on inputs as they were.
    """
    written = destinations(graph)
    if not written:
        return {}
    makers = {name: place for place, stage in enumerate(graph.stages) for name in targets_of(stage)}
    writers = {name: makers[tensor] for tensor, name in written.items()}
    readers: dict[int, dict[int, None]] = {place: {} for place in writers.values()}
    for place, stage in enumerate(graph.stages):
        for load in loads_of(stage):
            writer = writers.get(load.tensor, place)
            if writer != place:
                readers[writer][place] = None
        if tells(stage):
            assert place not in readers, "checks of what writes into an input are stages of their own"
            for before in readers.values():
                before[place] = None
    return {writer: tuple(places) for writer, places in readers.items()}


def _written_directly(graph: StageGraph, tensor: str, name: str) -> StageGraph | None:
    """The graph without a copy into the input, ``None`` if the stage needs the input at more than its own point."""
    makers = {target: stage for stage in graph.stages for target in targets_of(stage)}
    writer = makers[tensor]
    source = copied(writer)
    types = dict(graph.types)
    leaving = {item.tensor for item in graph.outputs if isinstance(item, GraphOutput)}
    if source is not None and source in makers and source not in leaving and types[source] == types[tensor]:
        stages = tuple(rename_tensors(stage, {source: tensor}) for stage in graph.stages if stage is not writer)
        kept = tuple((item, type_) for item, type_ in graph.types if item != source)
        writer = rename_tensors(makers[source], {source: tensor})
        graph = replace(graph, stages=stages, types=kept)
    return graph if _reads_only_its_point(writer, name) else None


def _written_last(graph: StageGraph, tensor: str) -> StageGraph:
    """The graph with the value in memory of its own, from which it is copied after everything else."""
    made = {target for stage in graph.stages for target in targets_of(stage)}
    writer = next(stage for stage in graph.stages if tensor in targets_of(stage))
    if copied(writer) in made:
        return graph
    value = f"{tensor}.value"
    type_ = dict(graph.types)[tensor]
    loops = tuple(Loop(index_symbol(f"{tensor}_{place}"), size) for place, size in enumerate(type_.sizes))
    assert isinstance(writer, Map)
    copy = Map(tensor, loops, Load(writer.value.dtype, value, tuple(loop.index for loop in loops)), writer.origins)
    stages = (*(rename_targets(stage, {tensor: value}) if stage is writer else stage for stage in graph.stages), copy)
    return replace(graph, stages=stages, types=(*graph.types, (value, type_)))


def _reads_only_its_point(stage: Stage, name: str) -> bool:
    """Whether all that a stage reads of a tensor is the element it writes, before it is written."""
    if isinstance(stage, Scatter):
        parts, loops = [stage.base], stage.target_loops
    elif isinstance(stage, Map):
        parts, loops = [stage.value], stage.loops
    else:
        parts, loops = [], ()
    allowed = {node for node in walk(*parts) if _is_element(node, name, loops)}
    others = expressions_of(stage)[len(parts) :]
    elsewhere = {node for node in walk(*others) if isinstance(node, Load) and node.tensor == name}
    return not elsewhere and all(load in allowed for load in loads_of(stage) if load.tensor == name)


def _is_element(node: Expr, name: str, loops: tuple[Loop, ...]) -> bool:
    return isinstance(node, Load) and node.tensor == name and not node.bindings and is_at(node, loops)


def _in_order(graph: StageGraph) -> tuple[Stage, ...] | None:
    """Stages so that each has what it reads; ``None`` if there is no such order. As it was, wherever that is one."""
    makers = {name: place for place, stage in enumerate(graph.stages) for name in targets_of(stage)}
    needs = [{makers[load.tensor] for load in loads_of(stage) if load.tensor in makers} for stage in graph.stages]
    for writer, readers in readers_before_writers(graph).items():
        needs[writer].update(readers)
    waiting: dict[int, list[int]] = {place: [] for place in range(len(needs))}
    for place, before in enumerate(needs):
        for source in before:
            waiting[source].append(place)
    ready = [place for place, before in enumerate(needs) if not before]
    order: list[Stage] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(graph.stages[place])
        for reader in waiting[place]:
            needs[reader].discard(place)
            if not needs[reader]:
                heapq.heappush(ready, reader)
    return tuple(order) if len(order) == len(graph.stages) else None
