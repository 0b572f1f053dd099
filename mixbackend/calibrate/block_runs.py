"""Blocks as a backend runs them: placed, cut, compiled, stitched, timed.

Place: between ``blocks`` and ``fitting``. Input: a backend, the reference that fills in what it refuses, costs that are
good enough to choose among its patterns. Output: ``BlockRun``, with measured seconds.
Method: every block once with the backend wherever it can, some also with only their heaviest ops on it, which shows
what changing between regions costs in place. All runs of a backend are timed in turns, so that each finds the caches as
another block left them, like a layer in a model.
Invariants: whatever a backend raises loses only that run, with a note; compiling stops when the time for it is spent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from mixbackend.calibrate.blocks import Block
from mixbackend.calibrate.device import synchronizer
from mixbackend.calibrate.probing import bound_run
from mixbackend.calibrate.timing import Clock, time_calls
from mixbackend.contracts import Backend, CompiledRegion, CostModel, InputRole, OpGraph, Plan
from mixbackend.execute.stitch import stitch
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph
from mixbackend.host.undisturbed import undisturbed
from mixbackend.partitioner.atoms import is_free
from mixbackend.partitioner.placement import place

_SLICE_S = 0.06
_HEAVY = frozenset({"matmul", "convolution"})


@dataclass(frozen=True)
class BlockRun:
    """One block under one plan.

    Attributes:
        name: of the block, and how it was placed.
        graph, plan: what ran.
        seconds: of one call.
    """

    name: str
    graph: OpGraph
    plan: Plan
    seconds: float


def run_blocks(
    blocks: Sequence[Block],
    backend: Backend,
    reference: Backend,
    costs: CostModel,
    device: torch.device,
    compile_budget_s: float,
    clock: Clock = time.perf_counter,
) -> tuple[list[BlockRun], list[str]]:
    """Time blocks on a backend.

    Args:
        blocks: what to run.
        backend, reference: they share each block; the reference may be the backend itself.
        costs: of both.
        device: where.
        compile_budget_s: seconds for compiling; blocks that are left then do not run.
        clock: monotonic seconds.

    Returns:
        The runs with timings that agree, and a note for each that failed.
    """
    prepared: list[tuple[str, OpGraph, Plan, Callable[[], object]]] = []
    notes: list[str] = []
    begin = clock()
    with undisturbed():
        for block in blocks:
            if clock() - begin > compile_budget_s:
                notes.append(f"block {block.name}: not run, {compile_budget_s:g} s of compiling are spent")
                continue
            try:
                prepared += _prepare(block, backend, reference, costs, device)
            except Exception as error:
                # A backend may raise anything; it is not judged by this block.
                notes.append(f"block {block.name}: failed, {type(error).__name__}: {str(error).splitlines()[:1]}")
        try:
            calls = [call for *_, call in prepared]
            timings = time_calls(calls, _SLICE_S, synchronizer(device.type), clock)
        except Exception as error:
            return [], [*notes, f"blocks: timing failed, {type(error).__name__}: {error}"]
    pairs = zip(prepared, timings, strict=True)
    return [BlockRun(name, graph, plan, t.seconds) for (name, graph, plan, _), t in pairs if t.settled], notes


def _prepare(
    block: Block, backend: Backend, reference: Backend, costs: CostModel, device: torch.device
) -> Iterator[tuple[str, OpGraph, Plan, Callable[[], object]]]:
    arguments = block.inputs(device)
    role = InputRole.PARAMETER if block.live else InputRole.CONSTANT
    roles = {position: PlaceholderRole(role) for position in range(1, len(arguments))}
    graph_module, graph = trace_graph(block.function, arguments, roles=roles)
    both = (backend,) if backend is reference else (backend, reference)
    for name, plan in _plans(block, graph, both, costs):
        call = _runnable(graph_module, graph, plan, both, arguments)
        call()
        yield name, graph, plan, call


def _plans(block: Block, graph: OpGraph, both: Sequence[Backend], costs: CostModel) -> Iterator[tuple[str, Plan]]:
    """The plans that have a region of the backend."""
    name = both[0].name
    plans = {block.name: place(graph, both, costs, single=name)}
    if block.divided and len(both) > 1:
        light = (node.name for node in graph.placed_nodes if not is_free(node) and not _is_heavy(graph, node.name))
        pinned = dict.fromkeys(light, both[1].name)
        plans[f"{block.name}/divided"] = place(graph, both, costs, pinned=pinned, single=name)
    yield from ((run, plan) for run, plan in plans.items() if any(item.backend == name for item in plan.regions))


def _is_heavy(graph: OpGraph, name: str) -> bool:
    return graph.view(name).op_class in _HEAVY


def _runnable(
    graph_module: torch.fx.GraphModule,
    graph: OpGraph,
    plan: Plan,
    backends: Sequence[Backend],
    arguments: Sequence[torch.Tensor],
) -> Callable[[], object]:
    """A plan as code, bound to the weights, without the checks that regions of a model have."""
    by_name = {backend.name: backend for backend in backends}
    exact = frozenset(name for name, backend in by_name.items() if backend.traits().exact_input_strides)
    regions = cut_regions(graph_module, graph, plan, exact)
    values = dict(zip((item.name for item in graph.inputs), arguments, strict=True))
    constants = {item.name: values[item.name] for item in graph.inputs if item.role is InputRole.CONSTANT}
    compiled: dict[tuple[str, str], CompiledRegion] = {}
    calls = []
    for bound in regions:
        key = (bound.planned.backend, bound.region.key)
        if key not in compiled:
            compiled[key] = by_name[bound.planned.backend].compile(bound.region)
        calls.append(bound_run(compiled[key], [constants.get(name) for name in bound.inputs]))
    stitched = stitch(graph_module, graph, regions, calls)
    return lambda: stitched.run(list(arguments))
