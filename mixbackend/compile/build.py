"""Build: from a proposal to a program: place, cut, compile, bind, stitch.

Place: third step of ``compile.driver``; asked again by ``compile.program_entry`` when a region failed.
Input: a ``Proposal``, the values of constants as far as they are known. Output: a ``Program``.
Method: one loop. A region that does not compile, or cannot be bound, is excluded together with all that run the same
code, and the graph is placed once more; everything else stays where it is.
Invariants: what is built was checked legal; only the reference's failure, or the policy, ends the loop with an error.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from mixbackend.compile.program import Program, Proposal, recorded_device, same_key_regions, with_runner
from mixbackend.compile.replay_script import write_replay
from mixbackend.compile.shown_by_torch import show_program
from mixbackend.compile.stages import StageDriver
from mixbackend.contracts import (
    Backend,
    OpGraph,
    PlacementError,
    Plan,
    PlannedRegion,
    RegionCompileError,
    check_plan,
    taking_effects,
)
from mixbackend.execute.answers import ExecutionPolicy
from mixbackend.execute.bindings import BindingJob, bind_all
from mixbackend.execute.compile_cache import Compiled
from mixbackend.execute.faults import Faults
from mixbackend.execute.region_errors import describe_region
from mixbackend.execute.region_executor import RegionExecutor
from mixbackend.execute.state_restore import written_inputs
from mixbackend.execute.stitch import Stitched, stitch
from mixbackend.graph.aliases import only_views
from mixbackend.graph.regions import BoundRegion, cut_regions
from mixbackend.host.slow_notice import SlowNotice
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event

logger = logging.getLogger("mixbackend")

MAXIMUM_REPAIRS = 16
"""After this many repairs of one graph, a failing region goes to eager without looking for another backend."""

NOTHING_BOUND: Mapping[str, torch.Tensor] = MappingProxyType({})


def build(
    proposal: Proposal, environment: Environment, constants: Mapping[str, torch.Tensor] = NOTHING_BOUND
) -> Program:
    """Build what was proposed.

    Args:
        proposal: how the graph is to be placed.
        environment: configuration, backends, costs and caches.
        constants: by name of the placeholder.

    Raises:
        MixbackendError: no placement exists, or failures are to be raised.
    """
    builder = _Builder(environment, StageDriver(proposal.graph.id, environment.debug))
    while True:
        plan = builder.place(proposal)
        built = builder.attempt(proposal, plan, constants)
        if isinstance(built, Program):
            return built
        proposal = excluded(proposal, plan, built, environment)


def cut_as_planned(proposal: Proposal, environment: Environment) -> tuple[BoundRegion, ...]:
    """The regions that would be compiled first; nothing is compiled.

    Raises:
        MixbackendError: no placement exists.
    """
    builder = _Builder(environment, StageDriver(proposal.graph.id, environment.debug))
    return builder.cut(proposal, builder.place(proposal))


def repaired(program: Program, failed: Sequence[PlannedRegion], environment: Environment) -> Program:
    """The program without these regions' backend for their nodes; with eager for them where no other may run them.

    Raises nothing into the call that failed.
    """
    proposal = excluded(program.proposal, program.plan, failed, environment)
    try:
        return build(proposal, environment, program.constants)
    except Exception as error:
        detail = f"eager runs it, although the rest of the plan and the configuration leave it no place: {error}"
        environment.events.append(Event("fallback", program.graph.id, failed[0].id, failed[0].backend, detail))
        return _on_reference(replace(program, proposal=proposal), failed, environment)


def excluded(proposal: Proposal, plan: Plan, failed: Sequence[PlannedRegion], environment: Environment) -> Proposal:
    """Forbid the failed regions' backend for their nodes; everything else stays where it is."""
    repairs = proposal.repairs + 1
    mine = frozenset(name for planned in failed for name in planned.nodes)
    forbidden = {failed[0].backend}
    if repairs > MAXIMUM_REPAIRS or environment.config.on_failure == "eager":
        forbidden = {item.name for item in environment.backends if not item.traits().reference}
    pairs = frozenset((name, backend) for backend in forbidden for name in mine)
    pinned = {name: item.backend for item in plan.regions for name in item.nodes if name not in mine}
    return replace(proposal, exclusions=proposal.exclusions | pairs, pinned=pinned, repairs=repairs)


def bound_anew(
    program: Program, constants: Mapping[str, torch.Tensor], jobs: Sequence[BindingJob], environment: Environment
) -> Program:
    """The program with some of its executors bound to other constants; built anew where one of them cannot be.

    Args:
        constants: of all executors.
        jobs: of ``program.jobs``: those executors that are bound now.
    """
    builder = _Builder(environment, StageDriver(program.graph.id, environment.debug))
    failed = builder.bind(program.regions, jobs)
    if failed is None:
        # A recording holds the addresses of what was bound before.
        return with_runner(replace(program, constants=constants), environment)
    proposal = excluded(program.proposal, program.plan, same_key_regions(program.regions, failed), environment)
    return build(proposal, environment, constants)


def _on_reference(program: Program, failed: Sequence[PlannedRegion], environment: Environment) -> Program:
    """A plan as it is, with eager for some of its regions: what no other backend may run."""
    builder = _Builder(environment, StageDriver(program.graph.id, environment.debug))
    plan, reference = program.plan, environment.reference.name
    while True:
        ids = {planned.id for planned in failed}
        moved = (replace(item, backend=reference, matches=()) if item.id in ids else item for item in plan.regions)
        plan = builder.checked(program.proposal, replace(plan, regions=tuple(moved)))
        built = builder.attempt(program.proposal, plan, program.constants)
        if isinstance(built, Program):
            return built
        failed = built


@dataclass(frozen=True)
class _Builder:
    """The stages of one graph."""

    environment: Environment
    driver: StageDriver

    def place(self, proposal: Proposal) -> Plan:
        return self.driver.run("place", self._placed, proposal)

    def attempt(
        self, proposal: Proposal, plan: Plan, constants: Mapping[str, torch.Tensor]
    ) -> Program | list[PlannedRegion]:
        """Cut, compile, bind, stitch a plan; the regions that do not compile or cannot be bound, if there are any."""
        run, layout = self.driver.run, proposal.layout
        if self.driver.settings.dump is not None:
            # Before a backend compiles: it may end the process.
            write_replay(self.driver, layout.module, layout.graph, self.environment.config)
        regions = run("cut", self.cut, proposal, plan, show=_show_regions)
        compiled, failed = run("compile", self._compile, proposal.graph, regions, show=_show_compiled)
        if failed is not None:
            return same_key_regions(regions, failed)
        faults: Faults = deque()
        executors = self._executors(proposal, regions, compiled, faults)
        stitched = run("stitch", stitch, layout.module, layout.graph, regions, executors, show=_show_source)
        program = Program(proposal, plan, regions, compiled, executors, stitched, constants, faults, stitched.run)
        failed = self.bind(regions, program.jobs(constants))
        if failed is not None:
            return same_key_regions(regions, failed)
        show_program(program)
        return with_runner(program, self.environment)

    def checked(self, proposal: Proposal, plan: Plan) -> Plan:
        """A legal plan, with eager's regions as they can be recorded."""
        graph = proposal.graph
        check_plan(graph, plan, taking_effects(self.environment.backends))
        device = recorded_device(graph, self.environment)
        if device is None:
            return plan
        from mixbackend.execute.cuda_graphs import split_eager_regions

        return split_eager_regions(graph, plan, {self.environment.reference.name}, device)

    def bind(self, regions: Sequence[BoundRegion], jobs: Sequence[BindingJob]) -> BoundRegion | None:
        """Bind executors to constants; stops at the first that fails and returns its region."""
        for job, error in zip(jobs, bind_all(jobs), strict=True):
            if error is not None:
                failed = next(bound for bound in regions if bound.region is job.executor.region)
                self._compile_failed(job.executor.backend, failed, error)
                return failed
        return None

    def _placed(self, proposal: Proposal) -> Plan:
        known = proposal.layout.plan if not proposal.exclusions and not proposal.pinned else None
        pinned = dict(proposal.pinned or {})
        plan = known or self.environment.planner.place(
            proposal.graph, proposal.exclusions, pinned, proposal.decision.choice
        )
        plan = self.checked(proposal, plan)
        if self.driver.settings.level >= 1:
            self.driver.say("\n".join(f"{item.id} {item.backend} {len(item.nodes)} nodes" for item in plan.regions))
        return plan

    def cut(self, proposal: Proposal, plan: Plan) -> tuple[BoundRegion, ...]:
        exact = frozenset(item.name for item in self.environment.backends if item.traits().exact_input_strides)
        return cut_regions(proposal.layout.module, proposal.graph, plan, exact)

    def _compile(
        self, graph: OpGraph, regions: Sequence[BoundRegion]
    ) -> tuple[tuple[Compiled, ...], BoundRegion | None]:
        """Compile all regions; stops at the first that fails and returns it."""
        compiled: list[Compiled] = []
        jobs = [(self._owner(graph, bound), bound.region) for bound in regions]
        results = self.environment.compile_cache.compile_all(jobs)
        with SlowNotice(f"compiling {graph.id}", len(jobs)) as notice:
            for (backend, _), bound in zip(jobs, regions, strict=True):
                try:
                    compiled.append(next(results))
                except Exception as error:
                    self._compile_failed(backend, bound, error)
                    return (), bound
                notice.advance()
        return tuple(compiled), None

    def _owner(self, graph: OpGraph, bound: BoundRegion) -> Backend:
        """Which backend compiles a region: the planned one; the reference where nothing is to run."""
        if not bound.outputs and only_views(graph, bound.members):
            return self.environment.reference
        return self.environment.planner.backend(bound.planned.backend)

    def _executors(
        self, proposal: Proposal, regions: Sequence[BoundRegion], compiled: Sequence[Compiled], faults: Faults
    ) -> tuple[RegionExecutor, ...]:
        config, graph = self.environment.config, proposal.graph
        policy = ExecutionPolicy(
            verify=config.verify.when, factor=config.verify.factor, strict=config.on_failure == "raise"
        )
        moving = frozenset(written_inputs(graph))
        sources = {item.name: item.source for item in graph.inputs if item.source}
        pairs = zip(regions, compiled, strict=True)
        return tuple(RegionExecutor(bound.region, made.code, policy, faults, sources, moving) for bound, made in pairs)

    def _compile_failed(self, backend: Backend, bound: BoundRegion, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        where = describe_region(bound.region)
        if self.environment.config.on_failure == "raise" or backend.traits().reference:
            raise RegionCompileError(
                what=f"backend {backend.name!r} could not compile a region that it had claimed: {text}",
                where=where,
                hint="forbid the backend for these ops, or use on_failure: repair",
            ) from error
        self.environment.compile_cache.quarantine(backend, bound.region, text)
        self._event("quarantine", bound.planned.id, backend.name, f"does not compile: {text} ({where})")

    def _event(self, kind: Any, region: str, backend: str, detail: str) -> None:
        self.environment.events.append(Event(kind, self.driver.graph_id, region, backend, detail))


def tell_unbuilt(graph_id: str, error: Exception, environment: Environment) -> None:
    """A graph cannot be built: eager runs it, unless that is to be an error."""
    # A user that requires a backend wants to hear that it cannot be had, whatever is done about failures.
    unmet = isinstance(error, PlacementError) and environment.config.required_backends()
    if environment.strict or unmet:
        raise error
    logger.debug("compiling %s failed", graph_id, exc_info=error)
    environment.events.append(Event("fallback", graph_id, "", "", f"the graph runs in eager: {error}"))


def _show_regions(regions: Sequence[BoundRegion]) -> str:
    blocks = [f"{item.region.id} {item.planned.backend} {item.region.key}\n{item.region.text}" for item in regions]
    return "\n".join(blocks)


def _show_compiled(result: tuple[tuple[Compiled, ...], BoundRegion | None]) -> str:
    return "\n".join(f"# {item.backend}\n{item.region.source}" for item in result[0])


def _show_source(stitched: Stitched) -> str:
    return stitched.source
