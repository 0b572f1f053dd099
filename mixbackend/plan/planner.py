"""The planner: where the ops of a graph run, what else that could be, and what it costs.

Place: above the partitioner, which it gives this configuration's backends, costs and preferences.
Input: a described graph, perhaps a choice. Output: a legal plan; prices of plans; what refusals cost.
Invariants: equal questions have equal answers. A plan that was made before is taken without a search, or not at all:
what speaks against it is told. What was searched for is kept
for later processes (``plan.stored_plans``), but for repairs and corrected costs. The partitioner is loaded when
something is searched for, priced or explained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mixbackend.contracts import Backend, OpGraph, Plan
from mixbackend.contracts.preferences import Preference
from mixbackend.cost.first_use import CostsAtFirstUse
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.locked_plans import LockedPlans
from mixbackend.plan.stored_plans import StoredPlans
from mixbackend.reporting import Event, EventLog

if TYPE_CHECKING:
    from mixbackend.cost.costs import SessionCosts
    from mixbackend.partitioner.counterfactuals import Counterfactuals
    from mixbackend.partitioner.explain import Question, Saving
    from mixbackend.partitioner.reprice import Repriced

MIXTURE_MARGIN = 0.04
"""A mixture must promise to save this share over the best single backend, and more where its backends' rates state a
larger error: estimates are no better, and one region has fewer surprises than many."""
CORRECTED_MARGIN = 0.01
"""The same where measurements correct the costs: less than noise is no reason to use one more backend."""
LEAST_GAIN = 1.15
"""So many times as fast a compiler of whole graphs must be for a first call to wait for it; calls try it later."""
LEAST_SAVED_S = 1e-4
"""And so much it must save at each call: ten seconds of compiling are gained back by 100,000 calls."""


@dataclass(frozen=True)
class Planner:
    """See the module's docstring.

    Attributes:
        backends: that may be used, in order of preference among equals.
        preferences: the user's rules.
        minimum_ops: least number of ops of a backend's region, by name.
        session: has the costs of graphs.
        events: told of a plan that does not hold any more.
        lock: told what came of a locked plan; ``None`` if there is no lock file.
        stored: what earlier processes planned; ``None`` to plan everything anew.
        improves: whether calls will try other plans than the first.
    """

    backends: tuple[Backend, ...]
    preferences: tuple[Preference, ...]
    minimum_ops: Mapping[str, int]
    session: CostsAtFirstUse
    events: EventLog
    lock: LockedPlans | None = None
    stored: StoredPlans | None = None
    improves: bool = False

    @property
    def costs(self) -> SessionCosts:
        """Of graphs."""
        return self.session.costs

    def backend(self, name: str) -> Backend:
        """One of the backends."""
        return next(backend for backend in self.backends if backend.name == name)

    def place(
        self,
        graph: OpGraph,
        exclusions: frozenset[tuple[str, str]] = frozenset(),
        pinned: Mapping[str, str] | None = None,
        choice: Choice = DEFAULT,
        corrections: Mapping[tuple[str, str], float] | None = None,
    ) -> Plan:
        """Plan a graph.

        Args:
            graph: what to place.
            exclusions: quarantined (node, backend name) pairs.
            pinned: node name to backend name: what stays where it is while the rest is repaired.
            choice: which backends take part, or the placement itself, if this graph can be placed so. A repair of a
                single backend's plan, or of a fixed one, is placed by cost.
            corrections: seconds by (node name, backend name) that measurements add to the costs. What was measured
                needs less margin.

        Where calls will try other plans, a mixture of all backends is one that builds quickly, see ``_built_quickly``.
        """
        fixed = None if choice.plan is None or exclusions or pinned else self._fixed(graph, choice.plan, choice.locked)
        if fixed is not None:
            return fixed
        if exclusions or pinned or corrections or choice.plan is not None:
            return self._searched(graph, exclusions, pinned, choice, corrections)
        question = f"place {choice.backends} {choice.single} {choice.layout} {choice.every} {self.improves}"
        known = None if self.stored is None else self.stored.plan(graph, question)
        if known is not None:
            return known
        left_out = self._compilers_left_out(choice)
        plan = self._built_quickly(graph, choice, left_out) if left_out else self._searched(graph, choice=choice)
        if self.stored is not None:
            self.stored.keep_plan(graph, question, plan)
        return plan

    def _compilers_left_out(self, choice: Choice) -> tuple[str, ...]:
        """Compilers of whole graphs that take no part in a mixture unless they run all of it."""
        if not self.improves or choice.backends or choice.single or choice.every:
            return ()
        asked_for = {item.backend for item in self.preferences}
        found = tuple(item.name for item in self.backends if item.traits().compiles_graphs)
        others = [item for item in self.backends if item.name not in found and not item.traits().reference]
        return found if others and asked_for.isdisjoint(found) else ()

    def _built_quickly(self, graph: OpGraph, choice: Choice, left_out: tuple[str, ...]) -> Plan:
        """The best plan without compilers of whole graphs, each region of which takes seconds to build; one of them for
        the whole graph where that is quicker by ``LEAST_GAIN`` and ``LEAST_SAVED_S``. Mixtures with them are for
        calls to try."""
        others = tuple(item.name for item in self.backends if item.name not in left_out)
        quick = self._searched(graph, choice=replace(choice, backends=others))
        wholes = [self._searched(graph, choice=replace(choice, single=name)) for name in left_out]
        best = min(wholes, key=lambda whole: whole.estimated_s)
        seconds = dict(pair for plan in (quick, *wholes) for pair in plan.single_backend_s)
        alone = tuple((item.name, seconds[item.name]) for item in self.backends if item.name in seconds)
        saved_s = quick.estimated_s - best.estimated_s
        waits = LEAST_GAIN * best.estimated_s < quick.estimated_s and saved_s >= LEAST_SAVED_S
        return replace(best if waits else quick, single_backend_s=alone)

    def _searched(
        self,
        graph: OpGraph,
        exclusions: frozenset[tuple[str, str]] = frozenset(),
        pinned: Mapping[str, str] | None = None,
        choice: Choice = DEFAULT,
        corrections: Mapping[tuple[str, str], float] | None = None,
    ) -> Plan:
        backends = choice.allowed(self.backends)
        single = choice.single if choice.single in {backend.name for backend in backends} else ""
        costs = self.costs.of(graph)
        placements = self.costs.placements(graph, backends, exclusions, pinned)
        if single and not pinned:
            return placements.plan(costs, single_backend=single, corrections=corrections)
        # What is pinned was chosen with the margin in view.
        margin = 0.0 if pinned or choice.every else CORRECTED_MARGIN if corrections else MIXTURE_MARGIN
        plan = placements.plan(costs, margin=margin, corrections=corrections)
        stated = self.costs.error(graph, {region.backend for region in plan.regions})
        if margin != MIXTURE_MARGIN or stated <= margin:
            return plan
        return placements.plan(costs, margin=stated, corrections=corrections)

    def held(self, graph: OpGraph, plan: Plan, accepted: frozenset[str] = frozenset()) -> Plan:
        """A canonical plan that was made before, or elsewhere, for a graph; nothing is searched.

        Args:
            accepted: ids of regions that their backend has compiled.

        Raises:
            MisfitError: it does not hold here; with every problem.
        """
        from mixbackend.partitioner.plan_revalidation import revalidated_plan

        return revalidated_plan(graph, plan, self.backends, self.preferences, accepted)

    def with_refusals(self, graph: OpGraph, plan: Plan) -> Plan:
        """The plan with what every backend refuses, for reports."""
        from mixbackend.partitioner.plan_revalidation import with_refusals

        return with_refusals(graph, plan, self.backends)

    def savings(self, graph: OpGraph, plan: Plan, exclusions: frozenset[tuple[str, str]]) -> tuple[Saving, ...]:
        """Which refusals cost most, in groups and then one by one; places the graph again for each promising one."""
        from mixbackend.partitioner.explain import savings, single_savings

        question = self._question(graph, plan, exclusions)
        groups = savings(question)
        return (*groups, *(item for item in single_savings(question, groups) if item not in groups))

    def counterfactuals(
        self, graph: OpGraph, plan: Plan, exclusions: frozenset[tuple[str, str]], choice: Choice
    ) -> Counterfactuals:
        """What every alternative to a plan would cost; nothing is asked before it is read."""
        from mixbackend.partitioner.counterfactuals import Counterfactuals

        fewer = choice.allowed(self.backends)
        return Counterfactuals(
            self._question(graph, plan, exclusions), fewer if len(fewer) < len(self.backends) else ()
        )

    def reprice(self, graph: OpGraph, plans: Sequence[Plan], bounded: bool = False) -> Repriced:
        """What plans of a graph cost at its sizes; with ``bounded``, also what no plan can undercut."""
        from mixbackend.partitioner.reprice import reprice

        return reprice(
            graph,
            plans,
            self.backends,
            self.costs.of(graph),
            preferences=self.preferences,
            minimum_ops=self.minimum_ops,
            bounded=bounded,
        )

    def comparable(self, graph: OpGraph) -> Mapping[str, float]:
        """Backends with estimates that can be held against one another (``SessionCosts.comparable``), with the relative
        errors that their rates state (``SessionCosts.error``)."""
        stored = self.stored if graph.device_type == "cpu" else None  # elsewhere pricing is what first calls do anyway
        known = None if stored is None else (stored.read(graph, "comparable") or {}).get("errors")
        if isinstance(known, dict) and all(isinstance(error, float) for error in known.values()):
            return known
        found = {name: self.costs.error(graph, (name,)) for name in sorted(self.costs.comparable(graph))}
        if stored is not None:
            stored.keep(graph, "comparable", {"errors": found})
        return found

    def op_seconds(self, graph: OpGraph, backend: str, node: str) -> float:
        """What a node's arithmetic and dispatch are estimated to take on a backend."""
        return self.costs.running(graph).op(backend, graph.view(node)).seconds

    def _fixed(self, graph: OpGraph, plan: Plan, locked: bool) -> Plan | None:
        """A plan that was made before, without any search; ``None`` if it does not hold any more.

        Raises:
            LockError: it is locked, the lock is frozen, and something differs.
        """
        from mixbackend.partitioner.plan_revalidation import MisfitError

        problems: tuple[str, ...] = ()
        found = None
        try:
            found = self.held(graph, plan)
        except MisfitError as error:
            problems = error.problems
        if locked and self.lock is not None:
            self.lock.settle(graph.id, problems)
        elif problems:
            detail = "placed by estimates: the plan that was measured does not hold: " + "; ".join(problems)
            self.events.append(Event("tuning", graph.id, "", "", detail))
        return found

    def _question(self, graph: OpGraph, plan: Plan, exclusions: frozenset[tuple[str, str]]) -> Question:
        from mixbackend.partitioner.explain import Question

        return Question(
            graph,
            self.backends,
            self.costs.of(graph),
            plan,
            preferences=self.preferences,
            exclusions=exclusions,
            minimum_ops=self.minimum_ops,
        )
