"""Solving: from a priced problem to the cheapest placement that is known.

Place: between pricing and assembling. Input: a ``Problem`` and the region rules. Output: ``Solved``, the best placement
of all, those of single backends, and a lower bound; ``chosen`` takes one of them.
Invariants: deterministic; what is found is legal and accepted by its backends; it never costs more than any single
backend with the fallback filling in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mixbackend.contracts import Backend, Unsupported
from mixbackend.partitioner.bound import discounted, on_one_pool, without_backends
from mixbackend.partitioner.bound_refinement import slack_values
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.energy import Placement, region_energies, true_energy
from mixbackend.partitioner.improve import improve, satisfy
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.regions import EntangledClaimsError
from mixbackend.partitioner.search import Labeller, Labelling, Neighbourhood, Orders, find_labels
from mixbackend.partitioner.single import last_resort_of, single_backend_labels
from mixbackend.partitioner.step_clock import StepClock

ROUNDS = 3
ATOMS_SEARCHED_AGAIN = 4000
"""Above this size the bound is not tightened by further searches."""


@dataclass(frozen=True)
class Found:
    """A placement with its true energy, and what was refused on the way to it."""

    seconds: float
    placement: Placement
    refusals: tuple[tuple[int, int, Unsupported], ...]


@dataclass(frozen=True)
class Solved:
    """What is known of a problem, whatever a mixture has to save.

    Attributes:
        labelling: of the problem's lower bound.
        bound: seconds; no legal plan costs less.
        found: the best placement of the search.
        singles: per backend, the placement of that one wherever it can run.
    """

    labelling: Labelling
    bound: float
    found: Found
    singles: tuple[Found, ...]


def solve(
    problem: Problem, backends: Sequence[Backend], rules: RegionRules, orders: Orders, clock: StepClock
) -> Solved:
    """Search, and hold the plans of single backends ready."""
    near = Neighbourhood(problem)
    with clock.measure("search"):
        labelling, bound, found = _search(problem, rules, near, orders)
    with clock.measure("single"):
        last_resort = last_resort_of(backends)
        singles = tuple(single(problem, slot, last_resort, rules, near) for slot in range(len(backends)))
    return Solved(labelling, bound, found, singles)


def chosen(
    problem: Problem, solved: Solved, rules: RegionRules, orders: Orders, margin: float, clock: StepClock
) -> Found:
    """The best placement; one of fewer backends unless more of them save the margin."""
    with clock.measure("single"):
        simple = min(solved.singles, key=lambda item: item.seconds)
        best = solved.found if solved.found.seconds <= simple.seconds else _improved(problem, simple, rules)
    if simple.seconds < best.seconds * (1.0 + margin):
        return simple  # Mixtures of fewer backends are not searched for: they save less still.
    fewer = _with_fewer(problem, best, rules, orders, margin, clock)
    return simple if simple.seconds < fewer.seconds * (1.0 + margin) else fewer


def single(problem: Problem, slot: int, last_resort: int, rules: RegionRules, near: Neighbourhood) -> Found:
    """One backend wherever it can, the last resort elsewhere."""
    labels = single_backend_labels(problem, slot, last_resort)
    return _realise(problem, labels, rules, near, frozenset({slot, last_resort}))


def _search(
    problem: Problem, rules: RegionRules, neighbourhood: Neighbourhood, orders: Orders, limit: float = math.inf
) -> tuple[Labelling, float, Found]:
    """The best plan of all, and of those that stay on one pool of threads; what undercuts no plan undercuts both.

    Args:
        limit: seconds; where no plan can be as quick, what is found is legal and no more.
    """
    views = (problem, *on_one_pool(problem))
    searched = [_search_as(view, problem, rules, neighbourhood, orders, limit) for view in views]
    found = min((item for _, _, item in searched), key=lambda item: item.seconds)
    return searched[0][0], min(bound for _, bound, _ in searched), found


def _with_fewer(
    problem: Problem, found: Found, rules: RegionRules, orders: Orders, margin: float, clock: StepClock
) -> Found:
    """The placement without backends that save less than the margin together; those that do least are tried first.

    A mixture of many is chosen among more than one of few, so its estimate is more likely to be too good.
    It ends: every turn takes one backend out of those that are undecided, and none comes back.
    """
    limit = found.seconds * (1.0 + margin)
    dropped: frozenset[int] = frozenset()
    undecided = frozenset(range(len(problem.backends)))
    while margin and problem.size <= ATOMS_SEARCHED_AGAIN:
        seconds = _seconds_by_backend(problem, found)
        if len(seconds) == 1 or not seconds.keys() & undecided:
            break
        least = min(seconds.keys() & undecided, key=lambda slot: (seconds[slot], slot))
        undecided -= {least}
        without = dropped | {least}
        view = without_backends(problem, without)
        with clock.measure("fewer"):
            _, _, again = _search(view, rules.modelled(without), Neighbourhood(view), orders, limit)
        if again.seconds <= limit and without.isdisjoint(_seconds_by_backend(problem, again)):
            dropped, found = without, again
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
    view: Problem,
    problem: Problem,
    rules: RegionRules,
    neighbourhood: Neighbourhood,
    orders: Orders,
    limit: float,
) -> tuple[Labelling, float, Found]:
    """Label, legalise, improve; search again with the values that the bound charged too little for exactly.

    Args:
        view: what labels are found in: the problem, or as plans see it that stay on one pool.
        problem: what plans cost.
        limit: see ``_search``.
    """
    labeller = Labeller(view, orders)
    labelling = labeller.find()
    bound = labelling.bound if not rules.pricing else find_labels(discounted(view, rules.pricing)).bound
    found = _realise(problem, labelling.labels, rules, neighbourhood)
    if bound > limit:
        return labelling, bound, found
    found = _improved(problem, found, rules)
    exact_values: frozenset[int] = frozenset()
    realised = {labelling.labels}
    for _ in range(ROUNDS):
        closed = found.seconds - bound <= 1e-12 * found.seconds
        slack = frozenset(slack_values(view, labelling.labels)) - exact_values
        if closed or not slack or rules.pricing or problem.size > ATOMS_SEARCHED_AGAIN:
            break
        exact_values |= slack
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
    while True:  # It ends: torn claims are not chosen again, so every turn tears another one.
        try:
            repaired = satisfy(problem, labels, rules, neighbourhood, torn, only)
        except EntangledClaimsError as error:
            if error.claims <= torn:
                raise
            torn |= error.claims
            continue
        seconds = true_energy(problem, repaired.placement, rules.price)
        return Found(seconds, repaired.placement, repaired.refusals)


def _improved(problem: Problem, found: Found, rules: RegionRules) -> Found:
    placement = improve(problem, found.placement, rules)
    seconds = true_energy(problem, placement, rules.price)
    return Found(seconds, placement, found.refusals) if seconds < found.seconds else found
