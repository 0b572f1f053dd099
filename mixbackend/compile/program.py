"""A program: one plan of one graph as running code.

Place: made by ``compile.build``, run and replaced by ``compile.program_entry``. Input: what was proposed, compiled and
stitched. Output: ``run``, on the list of the graph's inputs.
Invariants: a value; what changes while it runs are its executors alone. A repair makes another program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from mixbackend.contracts import OpGraph, Plan, PlannedRegion, Region
from mixbackend.execute.bindings import BindingJob
from mixbackend.execute.compile_cache import Compiled
from mixbackend.execute.faults import Faults
from mixbackend.execute.ranges import in_range
from mixbackend.execute.region_executor import RegionExecutor
from mixbackend.execute.run_function import Run
from mixbackend.execute.stitch import Stitched
from mixbackend.graph.regions import BoundRegion
from mixbackend.plan.environment import Environment
from mixbackend.plan.layout_choice import LaidOutGraph
from mixbackend.reporting import Event
from mixbackend.select.decision import Decision


@dataclass(frozen=True)
class Proposal:
    """How a graph is to be placed.

    Attributes:
        layout: the graph in the layout that was chosen, and its plan if one came of that choice.
        decision: what was measured of it before.
        exclusions: (node, backend name) pairs that failed.
        pinned: node name to backend name: what stays where it is.
        repairs: how often something was excluded.
    """

    layout: LaidOutGraph
    decision: Decision
    exclusions: frozenset[tuple[str, str]] = frozenset()
    pinned: Mapping[str, str] | None = None
    repairs: int = 0

    @property
    def graph(self) -> OpGraph:
        """The graph that is placed."""
        return self.layout.graph


@dataclass(frozen=True)
class Program:
    """See the module's docstring.

    Attributes:
        proposal: what it is made of.
        plan: where everything is.
        regions, compiled, executors: in execution order.
        stitched: the generated function.
        constants: what executors are bound to, by name of the placeholder.
        faults: what went wrong in its executors, and was not looked at yet.
        run: the stitched function, or recordings of it.
    """

    proposal: Proposal
    plan: Plan
    regions: tuple[BoundRegion, ...]
    compiled: tuple[Compiled, ...]
    executors: tuple[RegionExecutor, ...]
    stitched: Stitched
    constants: Mapping[str, torch.Tensor]
    faults: Faults
    run: Run

    @property
    def graph(self) -> OpGraph:
        """The graph that it runs."""
        return self.proposal.graph

    @cached_property
    def ranged(self) -> Run:
        """The same as ``run`` inside ranges of torch's profiler: of the graph, and of each region that is no part of a
        recording."""
        name = f"mixbackend {self.plan.graph_id}"
        if self.run is not self.stitched.run:
            return in_range(self.run, name)
        pairs = zip(self.regions, self.executors, strict=True)
        calls = [in_range(item, f"{name}/{bound.planned.id} on {item.backend.name}") for bound, item in pairs]
        return in_range(self.stitched.calling(calls), name)

    @property
    def rechecked_s(self) -> float:
        """Seconds that holding code for changed constants against eager has taken."""
        return sum(executor.rechecked_s for executor in self.executors)

    def jobs(self, constants: Mapping[str, torch.Tensor]) -> list[BindingJob]:
        """What binding to these constants takes."""
        pairs = zip(self.regions, self.executors, strict=True)
        return [BindingJob(executor, [constants.get(name) for name in bound.inputs]) for bound, executor in pairs]

    def planned(self, region: Region) -> BoundRegion | None:
        """Where a region is; ``None`` if it is of another program."""
        return next((bound for bound in self.regions if bound.region is region), None)

    def released(self) -> Program:
        """What is left of it for reports: nothing that was made of constants."""
        for executor in self.executors:
            executor.run_eager()
        return replace(self, constants={}, run=self.stitched.run)


def recorded_device(graph: OpGraph, environment: Environment) -> int | None:
    """Number of the GPU that runs the kernels to be recorded, if there is one."""
    if not environment.records:
        return None
    from mixbackend.execute.cuda_graphs import device_of

    return device_of(graph)


def with_runner(program: Program, environment: Environment, trial: bool = False, same_inputs: bool = False) -> Program:
    """The program with what is called: the stitched function, or new recordings of it where they are wanted.

    Args:
        trial: nothing keeps its results, and no event is emitted but for what cannot be recorded.
        same_inputs: calls come with the same tensors.
    """
    device = recorded_device(program.graph, environment)
    if device is None:
        return replace(program, run=program.stitched.run)
    if environment.config.verify.when in ("sampled", "always"):
        detail = "no CUDA graphs: later calls are to be verified, too"
        environment.events.append(Event("fallback", program.graph.id, "", "", detail))
        return replace(program, run=program.stitched.run)
    from mixbackend.execute.cuda_graphs import RecordedGraph, RecordingSource

    source = RecordingSource(
        program.proposal.layout.module,
        program.graph,
        program.regions,
        program.executors,
        program.stitched,
        program.constants,
    )
    recorder = Recorder(environment, program.graph.id)
    return replace(program, run=RecordedGraph(source, device, recorder.emit, trial, same_inputs))


@dataclass(frozen=True)
class Recorder:
    """Tells events of recordings of one graph."""

    environment: Environment
    graph_id: str

    def emit(self, region: str, detail: str) -> None:
        """What is recorded, or why it is not."""
        self.environment.events.append(Event("cuda_graphs", self.graph_id, region, "", detail))


def same_key_regions(regions: Sequence[BoundRegion], failed: BoundRegion) -> list[PlannedRegion]:
    """All regions that run the same code as the failed one: repeated layers fail together."""
    wanted = (failed.planned.backend, failed.region.key)
    return [item.planned for item in regions if (item.planned.backend, item.region.key) == wanted]
