"""``place``: the partitioner, on one screen.

Place: between describing the graph and compiling regions. Input: an ``OpGraph``, backends in the user's order, a cost
model, rules, quarantined pairs, pins. Output: a legal ``Plan``.
Invariants: equal input gives an equal plan; the plan is legal; it never costs more than any single backend with the
fallback filling in, nor than the fallback alone; ``lower_bound_s`` is at most the energy of every legal plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mixbackend.contracts import (
    Backend,
    CostModel,
    OpGraph,
    PlacementError,
    Plan,
    Preference,
    Unsupported,
    check_plan,
    dependencies,
)
from mixbackend.partitioner.assemble import assemble
from mixbackend.partitioner.atoms import form_atoms
from mixbackend.partitioner.bound import discounted, on_one_pool, without_backends
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.energy import Placement, region_energies, true_energy
from mixbackend.partitioner.improve import improve, satisfy
from mixbackend.partitioner.judging import judge
from mixbackend.partitioner.matching import find_claims
from mixbackend.partitioner.pricing import price
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.regions import EntangledClaimsError
from mixbackend.partitioner.search import Labeller, Labelling, Neighbourhood, find_labels
from mixbackend.partitioner.single import last_resort_of, single_backend_labels
from mixbackend.partitioner.stages import Stages, collection_paused
from mixbackend.partitioner.tighten import loose_values
from mixbackend.partitioner.wishes import apply_wishes

ROUNDS = 3
ATOMS_SEARCHED_AGAIN = 4000
"""Above this size the bound is not tightened by further searches."""


@dataclass(frozen=True)
class Found:
    """A placement with its true energy, and what was refused on the way to it."""

    seconds: float
    placement: Placement
    refusals: tuple[tuple[int, int, Unsupported], ...]


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
    stages: Stages | None = None,
) -> Plan:
    """Where every op of a graph should run.

    Args:
        graph: what to place.
        backends: who may be asked; earlier wins ties.
        costs: prices in seconds.
        preferences: the user's rules, first match wins.
        exclusions: quarantined (node, backend name) pairs.
        pinned: node name to backend name: placements that must stay.
        minimum_ops: backend name to the least number of ops that the user wants in a region of it.
        margin: share of its seconds that a mixture must save over the best single backend, because estimates are no
            better than that.
        single: name of a backend that runs all it can, whatever that costs; the fallback fills in.
        corrections: seconds by (node name, backend name) that measurements add to, or take from, the cost of an op.
        lifted: (node name, backend name) pairs whose refusal does not count: for counterfactuals.
        stages: collects the seconds that each stage took.

    Raises:
        PlacementError: some op can run nowhere; names the op, its source line and every refusal.
    """
    clock = stages or Stages()
    with collection_paused(len(graph.nodes)):
        problem = make_problem(
            graph, backends, costs, preferences, exclusions, pinned or {}, clock, corrections, lifted
        )
        rules = RegionRules(problem, backends, minimum_ops or {})
        if single is not None:
            return _solve_single(problem, backends, rules, [backend.name for backend in backends].index(single), clock)
        return _solve(problem, backends, rules, margin, clock)


def _solve_single(problem: Problem, backends: Sequence[Backend], rules: RegionRules, slot: int, clock: Stages) -> Plan:
    """The plan of one backend; its bound is zero, since nothing was searched."""
    with clock.measure("single"):
        found = _single(problem, slot, last_resort_of(backends), rules, Neighbourhood(problem))
    with clock.measure("assemble"):
        plan = assemble(problem, found.placement, found.refusals, rules)
        plan = replace(plan, single_backend_s=((backends[slot].name, found.seconds),))
        check_plan(problem.graph, plan)
    return plan


def _single(problem: Problem, slot: int, last_resort: int, rules: RegionRules, near: Neighbourhood) -> Found:
    labels = single_backend_labels(problem, slot, last_resort)
    return _realise(problem, labels, rules, near, frozenset({slot, last_resort}))


def _solve(problem: Problem, backends: Sequence[Backend], rules: RegionRules, margin: float, clock: Stages) -> Plan:
    with clock.measure("search"):
        near = Neighbourhood(problem)
        labelling, bound, found = _search(problem, rules, near)
        found = _with_fewer(problem, found, rules, margin)
    with clock.measure("single"):
        last_resort = last_resort_of(backends)
        singles = [_single(problem, slot, last_resort, rules, near) for slot in range(len(backends))]
        best = min([found, *singles], key=lambda item: item.seconds)
        if best is not found:
            best = _improved(problem, best, rules)
        simple = min(singles, key=lambda item: item.seconds)
        if simple.seconds < best.seconds * (1.0 + margin):
            best = simple
    with clock.measure("assemble"):
        plan = assemble(problem, best.placement, best.refusals, rules)
        plan = replace(
            plan,
            lower_bound_s=bound,
            single_backend_s=tuple(
                (backend.name, item.seconds) for backend, item in zip(backends, singles, strict=True)
            ),
            width=labelling.width,
            search=labelling.search,
        )
        check_plan(problem.graph, plan)
    return plan


def make_problem(
    graph: OpGraph,
    backends: Sequence[Backend],
    costs: CostModel,
    preferences: Sequence[Preference],
    exclusions: frozenset[tuple[str, str]],
    pinned: Mapping[str, str],
    clock: Stages,
    corrections: Mapping[tuple[str, str], float] | None = None,
    lifted: frozenset[tuple[str, str]] = frozenset(),
) -> Problem:
    """Judge, match, glue and price: everything before the search."""
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
        wishes = apply_wishes(judged, claims, preferences, pinned)
        if preferences:
            atoms, copied = form_atoms(wishes.candidates), atoms.replicable
            kept = copied - atoms.replicable
            claims = tuple(claim for claim in claims if not kept.intersection(claim.match.nodes))
        return price(wishes, atoms, claims, backends, costs, corrections or {})


def _search(problem: Problem, rules: RegionRules, neighbourhood: Neighbourhood) -> tuple[Labelling, float, Found]:
    """The best plan of all, and of those that stay on one pool of threads; what undercuts no plan undercuts both."""
    views = (problem, *on_one_pool(problem))
    searched = [_search_as(view, problem, rules, neighbourhood) for view in views]
    found = min((item for _, _, item in searched), key=lambda item: item.seconds)
    return searched[0][0], min(bound for _, bound, _ in searched), found


def _with_fewer(problem: Problem, found: Found, rules: RegionRules, margin: float) -> Found:
    """The placement without backends that save less than the margin, each; those that do least are tried first.

    A mixture of many is chosen among more than one of few, so its estimate is more likely to be too good.
    """
    dropped: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    while margin and problem.size <= ATOMS_SEARCHED_AGAIN:
        seconds = _seconds_by_backend(problem, found)
        if len(seconds) == 1 or not seconds.keys() - kept:
            break
        least = min(seconds.keys() - kept, key=lambda slot: seconds[slot])
        view = without_backends(problem, dropped | {least})
        _, _, again = _search(view, rules, Neighbourhood(view))
        if again.seconds <= found.seconds * (1.0 + margin):
            dropped, found = dropped | {least}, again
        else:
            kept |= {least}
    return found


def _seconds_by_backend(problem: Problem, found: Found) -> dict[int, float]:
    """Seconds of each backend of a placement."""
    owners = {
        region: problem.labels[atom][found.placement.labels[atom]].backend
        for atom, region in enumerate(found.placement.regions)
    }
    seconds: dict[int, float] = {}
    for region, spent in region_energies(problem, found.placement).items():
        seconds[owners[region]] = seconds.get(owners[region], 0.0) + spent
    return seconds


def _search_as(
    view: Problem, problem: Problem, rules: RegionRules, neighbourhood: Neighbourhood
) -> tuple[Labelling, float, Found]:
    """Label, legalise, improve; search again with the values that the bound charged too little for exactly.

    Args:
        view: what labels are found in: the problem, or as plans see it that stay on one pool.
        problem: what plans cost.
    """
    labeller = Labeller(view)
    labelling = labeller.find()
    bound = labelling.bound if not rules.pricing else find_labels(discounted(view, rules.pricing)).bound
    found = _improved(problem, _realise(problem, labelling.labels, rules, neighbourhood), rules)
    exact_values: frozenset[int] = frozenset()
    realised = {labelling.labels}
    for _ in range(ROUNDS):
        closed = found.seconds - bound <= 1e-12 * found.seconds
        loose = frozenset(loose_values(view, labelling.labels)) - exact_values
        if closed or not loose or rules.pricing or problem.size > ATOMS_SEARCHED_AGAIN:
            break
        exact_values |= loose
        labelling = labeller.find(exact_values)
        bound = max(bound, labelling.bound)
        if labelling.labels in realised:
            continue
        realised.add(labelling.labels)
        again = _improved(problem, _realise(problem, labelling.labels, rules, neighbourhood), rules)
        found = min(found, again, key=lambda item: item.seconds)
    return labelling, bound, found


def _realise(
    problem: Problem,
    labels: Sequence[int],
    rules: RegionRules,
    neighbourhood: Neighbourhood,
    only: frozenset[int] | None = None,
) -> Found:
    """Legal regions that every backend takes, for a labelling."""
    torn: frozenset[int] = frozenset()
    while True:
        try:
            repaired = satisfy(problem, labels, rules, neighbourhood, torn, only)
        except EntangledClaimsError as error:
            torn |= error.claims
            continue
        seconds = true_energy(problem, repaired.placement, rules.price)
        return Found(seconds, repaired.placement, repaired.refusals)


def _improved(problem: Problem, found: Found, rules: RegionRules) -> Found:
    placement = improve(problem, found.placement, rules)
    seconds = true_energy(problem, placement, rules.price)
    return Found(seconds, placement, found.refusals) if seconds < found.seconds else found
