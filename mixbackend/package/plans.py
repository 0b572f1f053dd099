"""Plans of a package: from the executable that was built for it to plain data, and back to what compiling is asked.

Place: written by ``exporting``; read by ``loading``, in the place of ``compile.propose``. Input: an executable with
all ranges of sizes built; later, a captured graph. Output: ``GraphPlan``; ``Outlook``.
Invariants: a plan is run only if it holds for the graph and the backends of here (``planner.held``). Where it does not,
that is an error if everything is to be as it was made, and otherwise an event, and the graph is placed by estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import sympy
import torch

from mixbackend.compile.executable import Executable, State
from mixbackend.compile.program import Program, Proposal
from mixbackend.compile.propose import Outlook, by_estimates
from mixbackend.compile.sized_graph import SizedGraph
from mixbackend.contracts import OpGraph, PackageError, PlacementError, Plan, RegionTextError, SymbolicSize, ValueMeta
from mixbackend.contracts.describe_op import value_meta
from mixbackend.contracts.rehint import symbols_of
from mixbackend.contracts.torch_compat import size_expression
from mixbackend.graph.identity import Captured
from mixbackend.graph.prepared import Prepared
from mixbackend.graph.traced import Traced
from mixbackend.package.model import Bucket, GraphPlan, GraphText, RelaidText
from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.partitioner.plan_data import plan_from_data, plan_to_data
from mixbackend.plan.environment import Environment
from mixbackend.plan.layout_choice import LaidOutGraph, as_relaid, in_layout, named_layout
from mixbackend.plan.layouts import Relaid
from mixbackend.plan.regime_search import Ladder, Quantity, Regime
from mixbackend.reporting import Event
from mixbackend.reporting.records import CHANNELS_LAST
from mixbackend.select.decision import UNTUNED, Decision


def graph_plan(executable: Executable, captured: Captured, environment: Environment) -> GraphPlan | None:
    """What is packaged of an executable's plans; every range of sizes is built for that. ``None``: eager runs it."""
    if executable.state is State.EAGER or not executable.rows:
        return None
    row = executable.rows[0]
    sized, ladder = row.sized, row.sized.ladder
    constants = sized.prepared.split is not None
    relaid = _relaid(sized.prepared, row.home.layout)
    if ladder is None or sized.buckets == 1:
        bucket = _bucket(row.home.program, _runners_up(executable))
        return GraphPlan(buckets=(bucket,), constants=constants, relaid=relaid)
    buckets = []
    for place, regime in enumerate(ladder.regimes):
        program, others = row.home.program, _runners_up(executable)
        if place != ladder.home:
            proposal = sized.proposal(place, row.id_of(place), UNTUNED, environment)
            program, others = row.build(proposal).program, {}
            relaid = relaid or _relaid(sized.prepared, proposal.layout)
        bucket = _bucket(program, others)
        hints = tuple(int(regime.hints[symbol]) for symbol in ladder.quantity.symbols)
        buckets.append(
            bucket.model_copy(update={"first": regime.first, "last": regime.last, "size": regime.size, "hints": hints})
        )
    names = symbols_of_graph(captured)
    places = tuple(names.index(symbol) for symbol in ladder.quantity.symbols)
    return GraphPlan(symbols=places, buckets=tuple(buckets), home=ladder.home, constants=constants, relaid=relaid)


def _relaid(prepared: Prepared, layout: LaidOutGraph) -> RelaidText | None:
    """The text of a graph with channels-last images."""
    if layout.record.chosen != CHANNELS_LAST:
        return None
    try:
        text = Traced(layout.module, prepared.phase, prepared.roles, None).text()
    except RegionTextError:
        return None
    return RelaidText(graph=GraphText.of(text), conversions=layout.record.conversions)


def symbols_of_graph(captured: Captured) -> list[sympy.Basic]:
    """The symbols that a graph takes, in their order."""
    values = (node.meta["val"] for node in captured.module.graph.find_nodes(op="placeholder"))
    return [size_expression(value) for value in values if isinstance(value, torch.SymInt)]


def _bucket(program: Program, runners_up: Mapping[str, tuple[str, ...]]) -> Bucket:
    plan = replace(canonical_plan(program.plan, program.graph), refusals=())
    record = program.proposal.layout.record
    return Bucket(
        # A layout that was decided before has no estimates beside it.
        layout=CHANNELS_LAST if record.chosen == CHANNELS_LAST else named_layout(record),
        plan=plan_to_data(plan),
        runners_up={region.id: runners_up[region.id] for region in plan.regions if runners_up.get(region.id)},
    )


def _runners_up(executable: Executable) -> dict[str, tuple[str, ...]]:
    """For regions, the other backends that could run them or a part, the cheapest first, by estimates."""
    found: dict[str, tuple[str, ...]] = {}
    for name, region in executable.records()[0].alternatives.items():
        able = [item for item in region.alternatives if item.change_s is not None and item.nodes]
        ordered = sorted(able, key=lambda item: item.change_s if item.change_s is not None else math.inf)
        found[name] = tuple(item.backend for item in ordered)
    return found


def _takes(module: torch.fx.GraphModule) -> list[tuple[str, ValueMeta]]:
    """The inputs of a graph: those that were prepared otherwise, or in other symbols, are not the same."""
    return [(node.name, value_meta(node.meta["val"])) for node in module.graph.find_nodes(op="placeholder")]


Adapt = Callable[[Bucket, Plan, OpGraph], Sequence[Plan]]
"""The plans to try for a graph, the best first: as it was made, or with other backends for some regions."""


@dataclass(frozen=True)
class PackagedPlans:
    """Proposes what a package says.

    Attributes:
        plan: of the graph.
        adapt: see ``Adapt``.
        loaded: names of the backends with artifacts that are loaded.
        reasons: for backends that cannot be used here, why.
        strict: whether a plan that does not hold is an error.
    """

    plan: GraphPlan
    adapt: Adapt
    loaded: frozenset[str]
    reasons: Mapping[str, str]
    strict: bool

    def propose(
        self, captured: Captured, prepared: Prepared, environment: Environment, decision: Decision | None
    ) -> Outlook:
        """See ``compile.driver.Propose``."""
        try:
            sized = self._sized(captured, prepared, environment)
        except PlacementError as error:
            if self.strict:
                raise PackageError(f"graph {captured.id}: {error.what}", where=error.where, hint=error.hint) from error
            detail = f"placed by estimates, the plan of the package does not hold: {error.what}"
            environment.events.append(Event("package", captured.id, "", "", detail))
            sized = by_estimates(captured, prepared, environment)
        return Outlook(captured, prepared, sized)

    def _sized(self, captured: Captured, prepared: Prepared, environment: Environment) -> SizedGraph:
        if self.plan.home >= len(self.plan.buckets):
            raise PlacementError("the package names a range of sizes that it does not have")
        home = self._laid_out(self.plan.buckets[self.plan.home], captured, prepared, environment)
        if len(self.plan.buckets) == 1:
            return SizedGraph(prepared, Proposal(home, UNTUNED), None)
        symbols = symbols_of_graph(captured)
        if any(place >= len(symbols) for place in self.plan.symbols):
            raise PlacementError("the package decides by a size that the graph does not take")
        deciding = tuple(symbols[place] for place in self.plan.symbols)
        known = symbols_of(home.graph)
        sizes = tuple(known.get(symbol, SymbolicSize(symbol)) for symbol in deciding)  # type: ignore[call-overload]
        regimes = []
        for bucket in self.plan.buckets:
            hints = dict(zip(deciding, bucket.hints, strict=True))
            laid = self._laid_out(bucket, captured, prepared, environment, hints)
            assert laid.plan is not None, "it was held against the graph"
            regimes.append(Regime(bucket.first, bucket.last, bucket.size, hints, laid.graph, laid.plan))  # type: ignore[arg-type]
        ladder = Ladder(Quantity(deciding, sizes), tuple(regimes), self.plan.home)  # type: ignore[arg-type]
        return SizedGraph(prepared, Proposal(home, UNTUNED), ladder)

    def _laid_out(
        self,
        bucket: Bucket,
        captured: Captured,
        prepared: Prepared,
        environment: Environment,
        hints: Mapping[sympy.Basic, int] | None = None,
    ) -> LaidOutGraph:
        """The graph as a bucket lays it out, with the first plan that holds."""
        made = plan_from_data(bucket.plan)
        layout = self._in_layout(bucket, captured, prepared, hints)
        problem: PlacementError | None = None
        for plan in self.adapt(bucket, made, layout.graph):
            try:
                held = environment.planner.held(layout.graph, plan, self._accepted(made, plan))
            except PlacementError as error:
                problem = problem or error
                continue
            self._tell(made, held, captured.id, environment)
            return replace(layout, plan=held)
        assert problem is not None, "one plan is tried at least"
        raise problem

    def _in_layout(
        self, bucket: Bucket, captured: Captured, prepared: Prepared, hints: Mapping[sympy.Basic, int] | None
    ) -> LaidOutGraph:
        relaid, named = self._read_relaid, (captured.phase, captured.id, prepared.roles)
        if bucket.layout == CHANNELS_LAST and relaid is not None and _takes(relaid.module) == _takes(prepared.module):
            return as_relaid(relaid, *named, hints)  # type: ignore[arg-type]
        return in_layout(prepared.module, *named, bucket.layout, hints)  # type: ignore[arg-type]

    @cached_property
    def _read_relaid(self) -> Relaid | None:
        """Read once, for all buckets."""
        found = self.plan.relaid
        return None if found is None else Relaid(found.graph.traced().read().module, found.conversions)

    def _accepted(self, made: Plan, plan: Plan) -> frozenset[str]:
        """Regions that are as they were made, of backends with artifacts that are loaded."""
        before = {region.id: region for region in made.regions}
        return frozenset(
            region.id for region in plan.regions if region.backend in self.loaded and before.get(region.id) is region
        )

    def _tell(self, made: Plan, held: Plan, graph_id: str, environment: Environment) -> None:
        """Say of each region that runs elsewhere where, and why."""
        for region in made.regions:
            now = [item.backend for item in held.regions if item.id.partition(".")[0] == region.id]
            if now != [region.backend]:
                reason = self.reasons.get(region.backend, "it cannot be used here")
                detail = f"runs on {' and '.join(dict.fromkeys(now))}: {reason}"
                environment.events.append(Event("package", graph_id, region.id, region.backend, detail))
