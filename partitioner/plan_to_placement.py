"""From a plan back to a placement: numbers instead of names.

Place: before anything is asked about a plan that was made earlier (alternatives, prices). Input: a problem and a plan
of its graph. Output: ``Placement``; region numbers are positions in the plan.
Invariants: ``assemble`` would give the plan's regions back. The problem need not be the one that the plan came from; a
plan that does not fit the problem's atoms and labels is a ``PlacementError``.
"""

from __future__ import annotations

from mixbackend.contracts import PlacementError, Plan, PlannedRegion
from mixbackend.partitioner.assemble import execution_order
from mixbackend.partitioner.energy import Placement
from mixbackend.partitioner.problem import Label, Problem


def placement_of_plan(problem: Problem, plan: Plan) -> Placement:
    """The placement of a plan.

    Raises:
        PlacementError: the plan tears an atom apart, uses what its backend no longer offers, or is not legal for the
            problem's atoms.
    """
    home = {name: number for number, region in enumerate(plan.regions) for name in region.nodes}
    claims = _chosen_claims(problem, plan)
    regions: list[int] = []
    labels: list[int] = []
    for atom, names in enumerate(problem.atoms.members):
        homes = {home.get(name) for name in names if name not in problem.atoms.replicable}
        number = homes.pop() if len(homes) == 1 else None
        if number is None:
            raise _unfit(plan, f"nodes {' '.join(names)} are one piece now, and the plan has no one region for them")
        regions.append(number)
        labels.append(_label(problem, plan, atom, plan.regions[number], claims.get((number, atom), -1)))
    placement = Placement(tuple(labels), tuple(regions))
    if len(execution_order(problem, placement)) < len(set(regions)):
        raise _unfit(plan, "its regions depend on each other in a circle")
    return placement


def _chosen_claims(problem: Problem, plan: Plan) -> dict[tuple[int, int], int]:
    """By (region, atom): the claim that the plan takes there."""
    number_of = {
        (problem.backends[claim.backend], claim.match.pattern, claim.match.nodes): number
        for number, claim in enumerate(problem.claims)
    }
    chosen: dict[tuple[int, int], int] = {}
    for place, region in enumerate(plan.regions):
        for pattern, nodes in region.matches:
            number = number_of.get((region.backend, pattern, nodes))
            if number is None:
                raise _unfit(plan, f"{region.backend} no longer takes {' '.join(nodes)} as {pattern}")
            chosen.update(((place, atom), number) for atom in problem.atoms_of_claim[number])
    return chosen


def _label(problem: Problem, plan: Plan, atom: int, region: PlannedRegion, claim: int) -> int:
    slot = problem.backends.index(region.backend) if region.backend in problem.backends else -1
    label = problem.label_numbers[atom].get(Label(slot, claim))
    if label is None:
        raise _unfit(plan, f"{region.backend} no longer takes %{problem.atoms.cores[atom]}")
    return label


def _unfit(plan: Plan, reason: str) -> PlacementError:
    return PlacementError(
        what=f"the plan for {plan.graph_id} cannot be priced with the present backends: {reason}",
        hint="compile the model anew, so that it is planned with what backends say now",
    )
