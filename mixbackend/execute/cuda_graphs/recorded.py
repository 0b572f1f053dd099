"""CUDA graphs: a placed graph with its kernels launched in a few calls, as ``mode="reduce-overhead"`` asks for.

Place: between ``execute.stitch`` and the caller, where calls are recorded. Input: the regions of a placed graph and
what they run. Output: a callable like the stitched function.
The first calls run as ever, until every region's result was held against eager's, one of each set of sizes at least:
what a backend makes then and keeps, scratch memory say, must not lie in the memory of graphs. Then neighbouring regions
that can be recorded become one CUDA graph of torch's own trees: these share one pool of memory among forward, backward
and graph breaks, know which results still live, and record again if weights have moved, until they have moved too often
(``moving_weights``). Each set of sizes has graphs of its own, up to ``MOST_SIZES``. What cannot be recorded runs in
between.
Invariants: results are those of the regions' code; as with torch's own mode, those of a forward are valid until the
model is called again. Gradients that are kept over calls have memory of their own, see ``gradients``. A region that
fails while it is recorded is left out of the graphs from then on, with an event, and that call is answered by running
the segment without a graph.
Inputs are copied into the graphs' memory; weights and constants are read where they lie.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.backends.common import forks
from mixbackend.contracts import OpGraph, PlacementError, TensorMeta
from mixbackend.contracts.torch_compat import (
    backward_keeps_graph,
    cuda_graph_recorded,
    cuda_graphs_enter_backward,
    ends_with_groups,
    record_without_other_ranks,
)
from mixbackend.execute.cuda_graphs.collectives import blocked_nodes, exchanges_of
from mixbackend.execute.cuda_graphs.gradients import Giver, Guarded
from mixbackend.execute.cuda_graphs.graph_segments import GraphSegment, cut_segments, describe_segments, obstacle_of
from mixbackend.execute.cuda_graphs.moving_weights import MovingWeights
from mixbackend.execute.cuda_graphs.recording import Emit, RecordedSegment, Recording, RegionsOnce, SegmentOnce
from mixbackend.execute.region_executor import RegionExecutor
from mixbackend.execute.run_function import Run
from mixbackend.execute.stitch import Stitched, call_text, function_text, load_function, stitch
from mixbackend.graph.regions import BoundRegion

MOST_SIZES = 8
"""So many sets of sizes of one graph are recorded; calls of further ones run without CUDA graphs."""

_MOST_CALLED = 64
"""So many sets of sizes that were called once are remembered."""


@dataclass(frozen=True)
class RecordingSource:
    """What CUDA graphs are recorded of.

    Attributes:
        module, graph: the captured graph and its description.
        regions, executors: its regions in execution order, and what runs them.
        stitched: all of it without CUDA graphs.
        constants: tensors of constant inputs, by name; the same at every call.
    """

    module: torch.fx.GraphModule
    graph: OpGraph
    regions: tuple[BoundRegion, ...]
    executors: tuple[RegionExecutor, ...]
    stitched: Stitched
    constants: Mapping[str, torch.Tensor]


class RecordedGraph:
    """See the module's docstring.

    Args:
        source: what is recorded.
        device: number of its GPU, see ``device_of``.
        emit: receives what is recorded, and what fails; only the latter in a trial.
        trial: whether nothing keeps its results.
        same_inputs: whether all inputs are the same memory at every call, so that none needs to be copied.
    """

    def __init__(
        self, source: RecordingSource, device: int, emit: Emit, trial: bool = False, same_inputs: bool = False
    ) -> None:
        self._source = source
        self._device = device
        self._emit_failure = emit
        self._emit: Emit = emit if not trial else lambda region, detail: None
        self._trial, self._same_inputs = trial, same_inputs
        self._lock = forks.long_reentrant_lock()
        self._sizes = _size_reader(source)
        self._runs: dict[tuple[int, ...], Run] = {}
        self._called: set[tuple[int, ...]] = set()
        self._refused: dict[int, str] = {}
        self._backward = source.graph.phase == "backward"
        # What is recorded for a trial ends before a caller could be done with its gradients.
        self._giver = Giver(lambda detail: emit("", detail)) if self._backward and not trial else None

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        sizes = self._sizes(arguments)
        run = self._runs.get(sizes) or self._made(sizes)
        return run(arguments)

    def _made(self, sizes: tuple[int, ...]) -> Run:
        """What runs calls of these sizes from now on; the stitched function where it is too early for a recording."""
        with self._lock:
            if sizes not in self._runs and len(self._runs) >= MOST_SIZES:
                self._emit("", f"further sizes run without CUDA graphs: those of {MOST_SIZES} are recorded")
                return self._plain
            if not self._are_prepared(sizes) or not all(executor.settled for executor in self._source.executors):
                return self._plain
            if sizes not in self._runs:
                self._runs[sizes] = self._recording()
            return self._runs[sizes]

    def _are_prepared(self, sizes: tuple[int, ...]) -> bool:
        """Whether a call of these sizes was let run without a graph; the one that asks is, otherwise."""
        prepared = sizes in self._called
        if len(self._called) >= _MOST_CALLED:
            self._called.clear()
        self._called.add(sizes)
        return prepared

    def _plain(self, arguments: list[Any]) -> Sequence[Any]:
        # Another backward is awaited by a tree while this one may be run again.
        if self._backward and not backward_keeps_graph():
            cuda_graphs_enter_backward(self._device)
        return self._source.stitched.run(arguments)

    def _recording(self) -> Run:
        """The stitched function of segments."""
        source = self._source
        segments = self._segments()
        self._emit("", describe_segments(segments, source.regions))
        count = sum(segment.is_recorded for segment in segments)
        if count == 0:
            return self._plain
        recording = Recording(count, self._device, self._emit)
        calls = [
            self._recorded(segment, recording) if segment.is_recorded else self._as_is(segment) for segment in segments
        ]
        try:
            run = stitch(source.module, source.graph, segments, calls).run
        except PlacementError as error:
            # Regions that run in order one by one cannot do so in these segments.
            self._emit_failure("", f"runs without CUDA graphs: {error.what}")
            return self._plain
        if self._backward and not segments[0].is_recorded:
            run = self._after_entering(run)
        return Guarded(run, self._plain, self._device, self._giver, self._backward)

    def _after_entering(self, run: Run) -> Run:
        def entered(arguments: list[Any]) -> Sequence[Any]:
            cuda_graphs_enter_backward(self._device)
            return run(arguments)

        return entered

    def _segments(self) -> tuple[GraphSegment, ...]:
        source = self._source
        static = frozenset(item.name for item in source.graph.inputs if item.role.is_weight)
        exchanges = exchanges_of(source.graph, self._device)
        blocked = blocked_nodes(exchanges)
        obstacles = [
            self._refused.get(number)
            or obstacle_of(bound, executor.backend.name, executor.backend.traits(), static, self._device, blocked)
            for number, (bound, executor) in enumerate(zip(source.regions, source.executors, strict=True))
        ]
        return cut_segments(source.graph, source.regions, obstacles, frozenset(source.constants), exchanges)

    def _as_is(self, segment: GraphSegment) -> Run:
        """A region, or views, without a recording."""
        if segment.views:
            return _repeated(self._source.module, segment)
        (number,) = segment.regions
        return self._source.executors[number]

    def _recorded(self, segment: GraphSegment, recording: Recording) -> RecordedSegment | SegmentOnce:
        source = self._source
        roles = {item.name: item.role for item in source.graph.inputs}
        given = {name for name, role in roles.items() if self._same_inputs or role.is_weight}
        static = [place for place, name in enumerate(segment.inputs) if name in given]
        constants = {name: source.constants[name] for name in segment.constants}
        regions = [source.regions[number] for number in segment.regions]
        executors = [source.executors[number] for number in segment.regions]
        filename = f"<mixbackend {source.graph.id}, CUDA graph of {regions[0].planned.id}>"
        bare = _joined(segment, regions, [executor.unguarded for executor in executors], constants, filename)
        guarded = _joined(segment, regions, executors, constants, filename)
        bare = MovingWeights(static, functools.partial(self._moving, segment)).around(bare)
        once = RegionsOnce(bare, guarded) if segment.groups else None
        graph = cuda_graph_recorded(
            once or bare,
            segment.inputs,
            len(segment.outputs),
            static,
            self._device,
            source.graph.phase,
            tuple(constants.values()),
        )
        failed = functools.partial(self._failed, segment, filename)
        if once is not None:
            record_without_other_ranks()
            ends = functools.partial(ends_with_groups, segment.groups, self._device)
            return SegmentOnce(graph, once, guarded, recording.done, failed, ends)
        return RecordedSegment(graph, guarded, recording.done, failed, _written(segment, regions))

    def _moving(self, segment: GraphSegment) -> None:
        """Leave out a segment with weights that move: its recordings are made anew again and again."""
        text = "weights are elsewhere at every step"
        self._refuse(segment.regions, text)
        self._emit("", f"{self._source.regions[segment.regions[0]].planned.id} is recorded no more: {text}")

    def _refuse(self, numbers: Iterable[int], text: str) -> None:
        with self._lock:
            self._refused.update(dict.fromkeys(numbers, text))
            self._runs.clear()

    def _failed(self, segment: GraphSegment, filename: str, error: Exception) -> None:
        """Leave the region that cannot be recorded out; all of the segment if it is not known which."""
        place = _called_in(filename, error)
        guilty = segment.regions if place is None else (segment.regions[place],)
        text = f"recording failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        self._refuse(guilty, text)
        where = " in a trial" if self._trial else ""
        for number in guilty:
            self._emit_failure(self._source.regions[number].planned.id, f"runs without a CUDA graph{where}, {text}")


def _joined(
    segment: GraphSegment,
    regions: Sequence[BoundRegion],
    calls: Sequence[Callable[[list[Any]], Sequence[Any]]],
    constants: Mapping[str, torch.Tensor],
    filename: str,
) -> Run:
    """The regions of a segment as one function."""
    steps = [(call_text(number, region), region.inputs) for number, region in enumerate(regions)]
    result = f"[{', '.join(segment.outputs)}]"
    source = function_text(segment.inputs, steps, result, segment.outputs, frozenset(constants))
    namespace: dict[str, Any] = dict(constants)
    namespace.update({f"region_{number}": call for number, call in enumerate(calls)})
    return load_function(source, namespace, filename)


def _written(segment: GraphSegment, regions: Sequence[BoundRegion]) -> dict[int, str]:
    """Names of the inputs of a segment that its regions write into, by position."""
    names = {region.inputs[place] for region in regions for place in region.region.written}
    return {place: name for place, name in enumerate(segment.inputs) if name in names}


def _repeated(module: torch.fx.GraphModule, segment: GraphSegment) -> Run:
    """The nodes of a captured graph that a segment names, run by torch."""
    nodes = {node.name: node for node in module.graph.nodes}
    graph = torch.fx.Graph()
    copies = {nodes[name]: graph.placeholder(name) for name in segment.inputs}
    for name in segment.views:
        copies[nodes[name]] = graph.node_copy(nodes[name], copies.__getitem__)
    graph.output([copies[nodes[name]] for name in segment.outputs])
    forward = torch.fx.GraphModule(module, graph).forward
    return lambda inputs: forward(*inputs)


def _called_in(filename: str, error: BaseException) -> int | None:
    """Which of a joined function's regions raised an error; ``None`` if none of them did."""
    for frame in traceback.extract_tb(error.__traceback__):
        name = (frame.line or "").partition("region_")[2].partition("(")[0]
        if frame.filename == filename and name.isdigit():
            return int(name)
    return None


def _size_reader(source: RecordingSource) -> Callable[[Sequence[Any]], tuple[int, ...]]:
    """Reads off a call's arguments what its sizes depend on; nothing where all of them are known."""
    if not source.graph.dynamic:
        return lambda arguments: ()
    metas = {item.name: item.meta for item in source.graph.inputs}
    placeholders = [node.name for node in source.module.graph.find_nodes(op="placeholder")]
    numbers = [place for place, name in enumerate(placeholders) if not isinstance(metas[name], TensorMeta)]
    tensors = [place for place, name in enumerate(placeholders) if _sized_by_symbols(metas[name])]

    def read(arguments: Sequence[Any]) -> tuple[int, ...]:
        found = [arguments[place] for place in numbers]
        for place in tensors:
            found += arguments[place].shape
            found += arguments[place].stride()
        return tuple(found)

    return read


def _sized_by_symbols(meta: object) -> bool:
    return isinstance(meta, TensorMeta) and meta.dynamic
