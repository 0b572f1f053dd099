"""``place``: the partitioner, on one screen.

Place: between describing the graph and compiling regions. Input: an ``OpGraph``, backends in the user's order, a cost
model, rules, quarantined pairs, pins. Output: a legal ``Plan``.
Invariants: equal input gives an equal plan; the plan is legal; it never costs more than any single backend with the
fallback filling in, nor than the fallback alone; ``lower_bound_s`` is at most the energy of every legal plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mixbackend.contracts import (
    Backend,
    CostModel,
    OpGraph,
    PlacementError,
    Plan,
    Preference,
    check_plan,
    dependencies,
    taking_effects,
)
from mixbackend.contracts.asked import asked_all
from mixbackend.partitioner.assemble import assemble
from mixbackend.partitioner.atoms import Atoms, form_atoms
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.end_merging import merge_ends, starting_seconds
from mixbackend.partitioner.energy import Placement, true_energy
from mixbackend.partitioner.judging import judge
from mixbackend.partitioner.matching import Claim, find_claims
from mixbackend.partitioner.plan_to_placement import placement_of_plan
from mixbackend.partitioner.pricing import price
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.search import Neighbourhood, Orders
from mixbackend.partitioner.siblings import unite_siblings
from mixbackend.partitioner.single import last_resort_of
from mixbackend.partitioner.solving import Found, Solved, chosen, single, solve
from mixbackend.partitioner.step_clock import StepClock, collection_paused
from mixbackend.partitioner.strays import take_back
from mixbackend.partitioner.user_rules import UserRules, apply_user_rules


def place(
    graph: OpGraph,
    backends: Sequence[Backend],
    costs: CostModel,
    *,
    preferences: Sequence[Preference] = (),
    exclusions: frozenset[tuple[str, str]] = frozenset(),
    pinned: Mapping[str, str] | None = None,
    minimum_ops: Mapping[str, int] | None = None,
    margin: float = 0.0,
    single: str | None = None,
    corrections: Mapping[tuple[str, str], float] | None = None,
    lifted: frozenset[tuple[str, str]] = frozenset(),
    clock: StepClock | None = None,
) -> Plan:
    """Where every op of a graph should run.

    Args:
        graph: what to place.
        backends: those that may be asked; earlier wins ties.
        costs: prices in seconds.
        preferences: the user's rules, first match wins.
        exclusions: quarantined (node, backend name) pairs.
        pinned: node name to backend name: placements that must stay.
        minimum_ops: backend name to the least number of ops that the user wants in a region of it.
        margin: share of its seconds that a mixture must save over the best single backend, because estimates are no
            better than that.
        single: name of a backend that runs all it can, whatever that costs; the fallback fills in.
        corrections: seconds by (node name, backend name) that measurements add to, or take from, the cost of an op.
        lifted: (node name, backend name) pairs of refusals that do not count: for counterfactuals.
        clock: collects the seconds that each step took.

    Raises:
        PlacementError: some op can run nowhere; names the op, its source line and every refusal.
    """
    placements = Placements(
        graph,
        backends,
        preferences=preferences,
        exclusions=exclusions,
        pinned=pinned,
        minimum_ops=minimum_ops,
        lifted=lifted,
        clock=clock,
    )
    return placements.plan(costs, margin=margin, single_backend=single, corrections=corrections)


class Placements:
    """Placements of one graph under one set of rules, at whatever costs: what costs do not change is done once.

    Arguments are those of ``place``. Plans are equal to those that ``place`` makes.
    """

    def __init__(
        self,
        graph: OpGraph,
        backends: Sequence[Backend],
        *,
        preferences: Sequence[Preference] = (),
        exclusions: frozenset[tuple[str, str]] = frozenset(),
        pinned: Mapping[str, str] | None = None,
        minimum_ops: Mapping[str, int] | None = None,
        lifted: frozenset[tuple[str, str]] = frozenset(),
        clock: StepClock | None = None,
    ) -> None:
        self.graph = graph
        self.backends = asked_all(backends)
        self._wanted = (preferences, exclusions, pinned or {}, lifted)
        self._minimum_ops = minimum_ops or {}
        self._clock = clock or StepClock()
        self._orders = Orders()
        self._priced: dict[int, tuple[CostModel, _Priced]] = {}

    def plan(
        self,
        costs: CostModel,
        *,
        margin: float = 0.0,
        single_backend: str | None = None,
        corrections: Mapping[tuple[str, str], float] | None = None,
    ) -> Plan:
        """The best plan at these costs; see ``place``."""
        with collection_paused(len(self.graph.nodes)):
            priced = self._at(costs) if not corrections else self._price(costs, corrections)
            return priced.plan(margin) if single_backend is None else priced.plan_of(single_backend)

    def seconds(self, plan: Plan, costs: CostModel) -> float:
        """What a plan of this graph takes at these costs.

        Raises:
            PlacementError: it is no placement of this graph.
        """
        with collection_paused(len(self.graph.nodes)):
            priced = self._at(costs)
            return true_energy(priced.problem, placement_of_plan(priced.problem, plan), priced.rules.price)

    def _at(self, costs: CostModel) -> _Priced:
        known = self._priced.get(id(costs))
        if known is None:
            known = self._priced[id(costs)] = costs, self._price(costs, {})
        return known[1]

    def _price(self, costs: CostModel, corrections: Mapping[tuple[str, str], float]) -> _Priced:
        problem = self._prepared.priced(costs, corrections, self._clock)
        rules = RegionRules(problem, self.backends, self._minimum_ops)
        return _Priced(problem, self.backends, rules, self._orders, self._clock)

    @cached_property
    def _prepared(self) -> Prepared:
        preferences, exclusions, pinned, lifted = self._wanted
        return prepare(self.graph, self.backends, preferences, exclusions, pinned, self._clock, lifted)


class _Priced:
    """A graph at some costs."""

    def __init__(
        self, problem: Problem, backends: Sequence[Backend], rules: RegionRules, orders: Orders, clock: StepClock
    ) -> None:
        self.problem = problem
        self.rules = rules
        self._orders = orders
        self._backends = backends
        self._clock = clock

    @cached_property
    def _solved(self) -> Solved:
        return solve(self.problem, self._backends, self.rules, self._orders, self._clock)

    def plan(self, margin: float) -> Plan:
        """The best plan; a mixture must save the margin."""
        solved = self._solved
        best = chosen(self.problem, solved, self.rules, self._orders, margin, self._clock)
        with self._clock.measure("assemble"):
            singles = tuple(item.seconds + self._starting(item.placement) for item in solved.singles)
            best, placement = self._gathered(best, singles)
            plan = assemble(self.problem, placement, best.refusals, self.rules)
            names = (backend.name for backend in self._backends)
            plan = replace(
                plan,
                # The bound is that of plans of connected regions.
                lower_bound_s=min(solved.bound, plan.estimated_s),
                single_backend_s=tuple(zip(names, singles, strict=True)),
                width=solved.labelling.width,
                search=solved.labelling.search,
            )
            check_plan(self.problem.graph, plan, taking_effects(self._backends))
        return plan

    def _gathered(self, best: Found, singles: Sequence[float]) -> tuple[Found, Placement]:
        """The best placement with its ends merged; a single backend's where that is quicker, with all starts counted.

        Args:
            singles: seconds of those, with starts, in the backends' order.
        """
        placement = self._together(best)
        seconds = true_energy(self.problem, placement, self.rules.price) + self._starting(placement)
        if seconds <= min(singles):
            return best, placement
        simple = self._solved.singles[singles.index(min(singles))]
        return simple, self._together(simple)

    def _together(self, found: Found) -> Placement:
        """Regions that share no value, and are one all the same."""
        placement = take_back(self.problem, found.placement, found.refusals, self.rules)
        merged = merge_ends(self.problem, placement, self.rules, self._backends)
        return unite_siblings(self.problem, merged, self.rules, self._backends)

    def _starting(self, placement: Placement) -> float:
        return starting_seconds(self.problem, placement, self._backends)

    def plan_of(self, name: str) -> Plan:
        """The plan of one backend; its bound is zero, since nothing was searched."""
        slot, last_resort = self.problem.backends.index(name), last_resort_of(self._backends)
        with self._clock.measure("single"):
            found = single(self.problem, slot, last_resort, self.rules, Neighbourhood(self.problem))
        with self._clock.measure("assemble"):
            placement = take_back(self.problem, found.placement, found.refusals, self.rules)
            placement = unite_siblings(self.problem, placement, self.rules, self._backends)
            plan = assemble(self.problem, placement, found.refusals, self.rules)
            plan = replace(plan, single_backend_s=((name, found.seconds),))
            check_plan(self.problem.graph, plan, taking_effects(self._backends))
        return plan


@dataclass(frozen=True, eq=False)
class Prepared:
    """A graph that is judged, matched and glued: all of a problem but its prices.

    Attributes:
        user_rules: verdicts after preferences and pins.
        atoms: the grouping.
        claims: matched patterns.
        backends: those that were asked.
    """

    user_rules: UserRules
    atoms: Atoms
    claims: tuple[Claim, ...]
    backends: tuple[Backend, ...]

    def priced(self, costs: CostModel, corrections: Mapping[tuple[str, str], float], clock: StepClock) -> Problem:
        """The problem at some costs."""
        with clock.measure("price"):
            return price(self.user_rules, self.atoms, self.claims, self.backends, costs, corrections)


def make_problem(
    graph: OpGraph,
    backends: Sequence[Backend],
    costs: CostModel,
    preferences: Sequence[Preference],
    exclusions: frozenset[tuple[str, str]],
    pinned: Mapping[str, str],
    clock: StepClock,
    corrections: Mapping[tuple[str, str], float] | None = None,
    lifted: frozenset[tuple[str, str]] = frozenset(),
) -> Problem:
    """Judge, match, glue and price: everything before the search."""
    prepared = prepare(graph, backends, preferences, exclusions, pinned, clock, lifted)
    return prepared.priced(costs, corrections or {}, clock)


def prepare(
    graph: OpGraph,
    backends: Sequence[Backend],
    preferences: Sequence[Preference],
    exclusions: frozenset[tuple[str, str]],
    pinned: Mapping[str, str],
    clock: StepClock,
    lifted: frozenset[tuple[str, str]] = frozenset(),
) -> Prepared:
    """Judge, match and glue: everything before the costs."""
    backends = asked_all(backends)
    if not backends:
        raise PlacementError(what="no backend to place on", hint="allow at least eager, which runs every op")
    with clock.measure("judge"):
        judged = judge(graph, backends, exclusions, lifted)
    with clock.measure("match"):
        atoms = form_atoms(judged)
        later: dict[str, list[str]] = {}
        for first, second in dependencies(graph) if any(backend.patterns() for backend in backends) else ():
            later.setdefault(first, []).append(second)
        claims = find_claims(judged, backends, exclusions, later, atoms.replicable)
    with clock.measure("price"):
        user_rules = apply_user_rules(judged, claims, preferences, pinned)
        if preferences:
            atoms, copied = form_atoms(user_rules.candidates), atoms.replicable
            kept = copied - atoms.replicable
            claims = tuple(claim for claim in claims if not kept.intersection(claim.match.nodes))
    return Prepared(user_rules, atoms, tuple(claims), tuple(backends))
