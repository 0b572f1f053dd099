"""A placed graph: one captured graph from description to running code, and back again when a region fails.

Place: the pipeline itself; ``PlacedGraph.build`` is its table of contents.
Input: a captured ATen graph. Output: a callable on the list of graph inputs.
Invariants: what runs was checked legal; a failing backend loses only the region that failed, and the rest of the plan
stays as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from mixbackend.compile.replay import write_replay
from mixbackend.compile.stages import StageDriver
from mixbackend.contracts import (
    Backend,
    Phase,
    Plan,
    PlannedRegion,
    RegionCompileError,
    check_plan,
)
from mixbackend.contracts.torch_compat import without_dispatch_modes
from mixbackend.execute.answers import SlotPolicy
from mixbackend.execute.bindings import BindingJob, Patience, bind_all
from mixbackend.execute.compile_cache import Compiled
from mixbackend.execute.cuda_graphs import RecordedGraph, Subject, device_of, set_apart
from mixbackend.execute.region_errors import FailureKind, describe_region
from mixbackend.execute.repeating import written_inputs
from mixbackend.execute.run_function import Run
from mixbackend.execute.slots import RegionSlot
from mixbackend.execute.stitch import Stitched, stitch
from mixbackend.graph.aliases import only_views
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.normalize import normalize
from mixbackend.graph.regions import BoundRegion, cut_regions
from mixbackend.partitioner.counterfactuals import Counterfactuals
from mixbackend.plan.environment import Environment
from mixbackend.plan.layout_choice import LayoutChoice, choose_layout
from mixbackend.reporting import Event, GraphRecord, RegionRecord
from mixbackend.select.decision import UNTUNED, Decision

MAXIMUM_REPAIRS = 16
"""After this many repairs of one graph, a failing region goes to eager without looking for another backend."""

WORTH_TELLING = 1e-3
"""Advice must promise to save this share of a graph's seconds."""


@dataclass(frozen=True)
class _Build:
    """One finished build of a graph; replaced as a whole by a repair."""

    plan: Plan
    regions: tuple[BoundRegion, ...]
    compiled: tuple[Compiled, ...]
    slots: tuple[RegionSlot, ...]
    stitched: Stitched
    run: Run


class PlacedGraph:
    """See the module's docstring.

    Args:
        graph_module: the captured graph; owned from now on.
        phase: which graph of the model it is.
        graph_id: its name in reports.
        roles: of its placeholders.
        environment: configuration, backends, costs and caches.
        decision: what tuning found best for it.
        described: the graph as it was described before, normalised, for the sizes to plan for; ``None`` to describe
            it now.

    Raises:
        MixbackendError: only if the policy is to raise, or no placement exists.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        phase: Phase,
        graph_id: str,
        roles: dict[str, PlaceholderRole],
        environment: Environment,
        decision: Decision = UNTUNED,
        described: LayoutChoice | None = None,
    ) -> None:
        self._module = graph_module
        self._phase = phase
        self._id = graph_id
        self._roles = roles
        self._environment = environment
        self._decision = decision
        self._driver = StageDriver(graph_id, environment.debug)
        self._lock = threading.RLock()
        self._exclusions: set[tuple[str, str]] = set()
        self._repairs = 0
        self._rehearsing = False
        self._constants: Mapping[str, torch.Tensor] = {}
        self._ledger: Counterfactuals | None = None
        self.layout = described or self._describe()
        self._module, self.graph = self.layout.module, self.layout.graph
        self._moving = frozenset(written_inputs(self.graph))
        self._sources = {item.name: item.source for item in self.graph.inputs if item.source}
        self._build = self._build_with({})

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        return self._build.run(arguments)

    def bind(self, constants: Mapping[str, torch.Tensor], patience: Patience | None = None) -> int:
        """Run code for these values of the constant inputs from now on.

        Args:
            constants: by name of the placeholder; what is passed for them in later calls must be these very tensors.
            patience: where given, code that takes long to make is made behind; eager runs these regions meanwhile.

        Returns:
            How many regions eager runs meanwhile.
        """
        with self._lock:
            self._constants = constants
            build = self._build
            jobs = self._binding_jobs(build.regions, build.slots)
            left = jobs if patience is None else [job for job in jobs if not job.begun_behind(patience)]
            failed = self._bind_slots(build.regions, left)
            if failed is not None:
                twins = _twins(build.regions, failed)
                self._build = self._build_with(self._exclude(build.plan, twins))
            else:
                # A recording holds the addresses of what was bound before.
                self._build = replace(build, run=self._runner(build.regions, build.slots, build.stitched))
            return len(jobs) - len(left)

    def let_go(self) -> None:
        """Nobody will call it again: what was made of constants goes, what reports say stays."""
        build = self._build
        self._constants = {}
        self._build = replace(build, run=build.stitched.run)
        for slot in build.slots:
            slot.run_eager()

    def time_regions(self) -> None:
        """Time the next calls of every region, for ``record``."""
        for slot in self._build.slots:
            slot.time_again()

    def rehearse(self, on: bool) -> None:
        """Record CUDA graphs for a trial from now on, or for good again; what was recorded before is let go.

        In a trial, calls come with the same tensors, and nothing is told but what cannot be recorded.
        """
        with self._lock:
            self._rehearsing = on
            build = self._build
            self._build = replace(build, run=self._runner(build.regions, build.slots, build.stitched))

    def settle(self, decision: Decision) -> None:
        """Say what was measured of this graph after it was placed as the decision says."""
        self._decision = decision

    @property
    def rechecked_s(self) -> float:
        """Seconds that holding code for changed constants against eager has taken."""
        return sum(slot.rechecked_s for slot in self._build.slots)

    @property
    def plan(self) -> Plan:
        """Where everything is now."""
        return self._build.plan

    @property
    def source(self) -> str:
        """Text of the stitched function."""
        return self._build.stitched.source

    def record(self, *, advice: bool = False) -> GraphRecord:
        """What the report says about this graph; with ``advice``, also which refusals cost most."""
        build = self._build_to_read()
        rows = zip(build.plan.regions, build.compiled, build.slots, strict=True)
        regions = tuple(
            RegionRecord(
                id=planned.id,
                measured_s=slot.measured_s,
                cached=compiled.cached,
                reused_from=compiled.reused_from,
                notes=(*compiled.region.notes, *(slot.bound.notes if slot.bound is not None else ())),
            )
            for planned, compiled, slot in rows
        )
        found = self._environment.planner.savings(self.graph, build.plan, frozenset(self._exclusions)) if advice else ()
        return GraphRecord(
            self.graph,
            build.plan,
            regions,
            advice=tuple(item for item in found if item.seconds > WORTH_TELLING * build.plan.estimated_s),
            layout=self.layout.record,
            tuning=self._decision.record(),
            ledger=self._ledger_of(build.plan),
        )

    def _build_to_read(self) -> _Build:
        """The present build, with all that its plan can say."""
        with self._lock:
            plan = self._environment.planner.with_refusals(self.graph, self._build.plan)
            if plan is not self._build.plan:
                self._build = replace(self._build, plan=plan)
            return self._build

    def _ledger_of(self, plan: Plan) -> Counterfactuals:
        """The ledger of the present plan: one for all reports, since what it found is kept in it."""
        if self._ledger is None or self._ledger.question.plan is not plan:
            exclusions = frozenset(self._exclusions)
            self._ledger = self._environment.planner.ledger(self.graph, plan, exclusions, self._decision.choice)
        return self._ledger

    def _describe(self) -> LayoutChoice:
        run = self._driver.run
        passes = (self._module, self._driver.run_pass)
        run("capture", normalize, *passes, show=lambda _: self._module.print_readable(print_output=False))
        arguments = (self._module, self._phase, self._id, self._roles, self._environment.planner, self._decision.choice)
        return run("describe", choose_layout, *arguments, show=lambda choice: str(choice.graph))

    def _build_with(self, pinned: dict[str, str]) -> _Build:
        """The pipeline: place, cut, compile, stitch; a region that does not compile is placed again."""
        while True:
            plan = self._driver.run("place", self._place, pinned)
            build = self._build_of(plan)
            if isinstance(build, _Build):
                return build
            pinned = self._exclude(plan, build)

    def _build_of(self, plan: Plan) -> _Build | list[PlannedRegion]:
        """Cut, compile, stitch a plan; the regions that do not compile or cannot be bound, if there are any."""
        run = self._driver.run
        regions = run("cut", self._cut, plan, show=_show_regions)
        compiled, failed = run("compile", self._compile, regions, show=_show_compiled)
        if failed is not None:
            return _twins(regions, failed)
        slots = tuple(map(self._slot, regions, compiled))
        failed = self._bind_slots(regions, self._binding_jobs(regions, slots))
        if failed is not None:
            return _twins(regions, failed)
        stitched = run("stitch", stitch, self._module, self.graph, regions, slots, show=_show_source)
        self._finish_dump()
        return _Build(plan, regions, compiled, slots, stitched, self._runner(regions, slots, stitched))

    def _runner(self, regions: tuple[BoundRegion, ...], slots: tuple[RegionSlot, ...], stitched: Stitched) -> Run:
        """The stitched function itself, or recordings of it where they are wanted."""
        device = self._recorded_device()
        if device is None:
            return stitched.run
        if self._environment.config.verify.when in ("sampled", "always"):
            self._event("fallback", "", "", "no CUDA graphs: later calls are to be verified, too")
            return stitched.run
        subject = Subject(self._module, self.graph, regions, slots, stitched, self._constants)

        def tell(region: str, detail: str) -> None:
            self._event("cuda_graphs", region, "", detail)

        return RecordedGraph(subject, device, tell, trial=self._rehearsing)

    def _recorded_device(self) -> int | None:
        """Number of the GPU whose kernels are to be recorded, if there is one."""
        return device_of(self.graph) if self._environment.records else None

    def _place(self, pinned: dict[str, str]) -> Plan:
        known = self.layout.plan if not self._exclusions and not pinned else None
        plan = known or self._environment.planner.place(
            self.graph, frozenset(self._exclusions), pinned, self._decision.choice
        )
        plan = self._checked(plan)
        if self._driver.settings.level >= 1:
            self._driver.say("\n".join(f"{item.id} {item.backend} {len(item.nodes)} nodes" for item in plan.regions))
        return plan

    def _checked(self, plan: Plan) -> Plan:
        """A legal plan, with eager's regions as they can be recorded."""
        check_plan(self.graph, plan)
        device = self._recorded_device()
        return plan if device is None else set_apart(self.graph, plan, {self._environment.reference.name}, device)

    def _cut(self, plan: Plan) -> tuple[BoundRegion, ...]:
        exact = frozenset(item.name for item in self._environment.backends if item.traits().exact_input_strides)
        return cut_regions(self._module, self.graph, plan, exact)

    def _compile(self, regions: Sequence[BoundRegion]) -> tuple[tuple[Compiled, ...], BoundRegion | None]:
        """Compile all regions; stops at the first that fails and returns it."""
        compiled: list[Compiled] = []
        jobs = [(self._owner(bound), bound.region) for bound in regions]
        results = self._environment.compile_cache.compile_all(jobs)
        for (backend, _), bound in zip(jobs, regions, strict=True):
            try:
                compiled.append(next(results))
            except Exception as error:
                self._compile_failed(backend, bound, error)
                return (), bound
        return tuple(compiled), None

    def _owner(self, bound: BoundRegion) -> Backend:
        """Who compiles a region: its backend; or the reference, where views of one storage are read and written, and
        where nothing is to run."""
        owner = self._environment.planner.backend(bound.planned.backend)
        if not bound.outputs and only_views(self.graph, bound.members):
            return self._environment.reference
        if not bound.entangled or owner.traits().takes_effects:
            return owner
        detail = "eager runs the region: it writes into storage that several of its inputs share"
        self._event("fallback", bound.planned.id, owner.name, detail)
        return self._environment.reference

    def _compile_failed(self, backend: Backend, bound: BoundRegion, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        where = describe_region(bound.region)
        if self._environment.config.on_failure == "raise" or backend.traits().reference:
            raise RegionCompileError(
                what=f"backend {backend.name!r} could not compile a region that it had claimed: {text}",
                where=where,
                hint="forbid the backend for these ops, or use on_failure: repair",
            ) from error
        self._environment.compile_cache.quarantine(backend, bound.region, text)
        self._event("quarantine", bound.planned.id, backend.name, f"does not compile: {text} ({where})")

    def _exclude(self, plan: Plan, failed: Sequence[PlannedRegion]) -> dict[str, str]:
        """Forbid the failed regions' backend for their nodes; everything else stays where it is."""
        self._repairs += 1
        mine = frozenset(name for planned in failed for name in planned.nodes)
        forbidden = {failed[0].backend}
        if self._repairs > MAXIMUM_REPAIRS or self._environment.config.on_failure == "eager":
            forbidden = {item.name for item in self._environment.backends if not item.traits().reference}
        self._exclusions.update((name, backend) for backend in forbidden for name in mine)
        return {name: item.backend for item in plan.regions for name in item.nodes if name not in mine}

    def _slot(self, bound: BoundRegion, compiled: Compiled) -> RegionSlot:
        config = self._environment.config
        policy = SlotPolicy(verify=config.verify.when, factor=config.verify.factor, strict=config.on_failure == "raise")
        return RegionSlot(
            bound.region, compiled.code, policy, self._slot_failed, self._tell_of, self._sources, self._moving
        )

    def _binding_jobs(self, regions: Sequence[BoundRegion], slots: Sequence[RegionSlot]) -> list[BindingJob]:
        pairs = zip(regions, slots, strict=True)
        return [BindingJob(slot, [self._constants.get(name) for name in bound.inputs]) for bound, slot in pairs]

    def _bind_slots(self, regions: Sequence[BoundRegion], jobs: Sequence[BindingJob]) -> BoundRegion | None:
        """Bind regions to the constants; stops at the first that fails and returns it."""
        for job, error in zip(jobs, bind_all(jobs), strict=True):
            if error is not None:
                failed = next(bound for bound in regions if bound.region is job.slot.region)
                self._compile_failed(job.slot.backend, failed, error)
                return failed
        return None

    def _slot_failed(self, slot: RegionSlot, kind: FailureKind, text: str) -> None:
        """A region failed while running; the call was answered by eager. Place its neighbourhood anew."""
        event: dict[FailureKind, str] = {"run": "quarantine", "verify": "verify_failed"}
        with self._lock, without_dispatch_modes():
            failed = self._planned(slot)
            if slot.code.fail(text, slot):
                self._environment.compile_cache.quarantine(slot.backend, slot.region, text)
                self._event(event[kind], _name(slot), slot.backend.name, f"{text} ({describe_region(slot.region)})")
            if failed is None:
                return
            twins = _twins(self._build.regions, failed)
            self._repair(twins)
            moved = frozenset(name for planned in twins for name in planned.nodes)
            owners = sorted({item.backend for item in self.plan.regions if moved & set(item.nodes)})
            self._event("repair", failed.planned.id, slot.backend.name, f"now on {', '.join(owners)}")

    def _repair(self, failed: Sequence[PlannedRegion]) -> None:
        """Build the graph without these regions' backend for their nodes; raises nothing into the call that failed."""
        plan = self._build.plan
        try:
            self._build = self._build_with(self._exclude(plan, failed))
        except Exception as error:
            detail = f"eager runs it, although the rest of the plan and the configuration leave it no place: {error}"
            self._event("fallback", failed[0].id, failed[0].backend, detail)
            self._build = self._build_on_reference(plan, failed)

    def _build_on_reference(self, plan: Plan, failed: Sequence[PlannedRegion]) -> _Build:
        """A plan as it is, with eager for some of its regions: what nobody else may run."""
        while True:
            ids = {planned.id for planned in failed}
            reference = self._environment.reference.name
            moved = (replace(item, backend=reference, matches=()) if item.id in ids else item for item in plan.regions)
            plan = self._checked(replace(plan, regions=tuple(moved)))
            build = self._build_of(plan)
            if isinstance(build, _Build):
                return build
            failed = build

    def _tell_of(self, slot: RegionSlot, text: str) -> None:
        """A check could not be made, or proved nothing."""
        self._event("unverified", _name(slot), slot.backend.name, f"{text} ({describe_region(slot.region)})")

    def _planned(self, slot: RegionSlot) -> BoundRegion | None:
        """The slot's region, ``None`` if a repair has replaced it meanwhile."""
        pairs = zip(self._build.slots, self._build.regions, strict=True)
        return next((bound for mine, bound in pairs if mine is slot), None)

    def _event(self, kind: Any, region: str, backend: str, detail: str) -> None:
        self._environment.events.append(Event(kind, self._id, region, backend, detail))

    def _finish_dump(self) -> None:
        if self._driver.settings.dump is not None:
            write_replay(self._driver, self._module, self.graph, self._environment.config)


def _name(slot: RegionSlot) -> str:
    """Of the slot's region within its graph."""
    return slot.region.id.rpartition("/")[2]


def _twins(regions: Sequence[BoundRegion], failed: BoundRegion) -> list[PlannedRegion]:
    """All regions that run the same code as the failed one: repeated layers fail together."""
    wanted = (failed.planned.backend, failed.region.key)
    return [item.planned for item in regions if (item.planned.backend, item.region.key) == wanted]


def _show_regions(regions: Sequence[BoundRegion]) -> str:
    blocks = [f"{item.region.id} {item.planned.backend} {item.region.key}\n{item.region.text}" for item in regions]
    return "\n".join(blocks)


def _show_compiled(result: tuple[tuple[Compiled, ...], BoundRegion | None]) -> str:
    return "\n".join(f"# {item.backend}\n{item.region.source}" for item in result[0])


def _show_source(stitched: Stitched) -> str:
    return stitched.source
