"""What else could have been decided for the regions of a plan, what that would cost, and which backends refuse.

Place: after ``place``, for reports and for tuning. Input: a problem and the placement of a plan. Output: for every
region and every other backend an ``Alternative``: the region, or what that backend can run of it, goes there and
everything else stays as it is (``moves``). Pure.
Invariants: every change is the exact difference to another legal plan, never understated; where a backend takes only a
part, all it can run goes, though a smaller part may be cheaper.
Bounded: the regions that cost most come first, and after ``WORK`` the rest have no answer; ``work=None`` asks for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixbackend.contracts import Refusal, Unsupported
from mixbackend.partitioner.atoms import is_free
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.energy import Placement, region_energies
from mixbackend.partitioner.moves import Move, Mover
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.single import labels_on

WORK = 20_000_000
"""About so many regions and atoms are looked at for all alternatives of a plan: a second."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another backend for a region, or for one node.

    Attributes:
        backend: name of the other one.
        change_s: seconds by which the plan's true energy would rise; ``None`` if there is no such plan.
        nodes: how many nodes would go.
        refused: why not, or why not all of it: by this backend, or by one that would keep too small a rest. Without it
            and without a ``change_s``, no cut of the regions is legal.
    """

    backend: str
    change_s: float | None
    nodes: int = 0
    refused: Refusal | None = None


@dataclass(frozen=True, slots=True)
class RegionAlternatives:
    """All alternatives for one region of a plan.

    Attributes:
        region: id in the plan.
        alternatives: one per other backend, in the user's order.
    """

    region: str
    alternatives: tuple[Alternative, ...]

    @property
    def margin_s(self) -> float | None:
        """See ``margin``."""
        return margin(self.alternatives)


def margin(alternatives: Sequence[Alternative]) -> float | None:
    """Seconds that the next best would cost more, 0 if it is estimated no dearer; ``None`` if there is none."""
    changes = [item.change_s for item in alternatives if item.change_s is not None]
    return max(0.0, min(changes)) if changes else None


def region_alternatives(
    problem: Problem, placement: Placement, rules: RegionRules, work: int | None = WORK
) -> dict[int, tuple[Alternative, ...]]:
    """Alternatives by region number, for as many regions as the work allows, costliest first."""
    mover = Mover(problem, placement, rules)
    seconds = region_energies(problem, placement, rules.price)
    found: dict[int, tuple[Alternative, ...]] = {}
    done = 0
    for region in sorted(seconds, key=lambda region: (-seconds[region], region)):
        atoms = mover.members(region)
        # A try copies the regions and walks the region's atoms and their values.
        done += (len(problem.backends) - 1) * (len(seconds) + 10 * len(atoms) + problem.size // 50)
        if work is not None and found and done > work:
            break
        own = problem.labels[atoms[0]][placement.labels[atoms[0]]].backend
        others = [slot for slot in range(len(problem.backends)) if slot != own]
        found[region] = tuple(_region_on(problem, placement, mover, atoms, slot) for slot in others)
    return found


def _region_on(problem: Problem, placement: Placement, mover: Mover, atoms: Sequence[int], slot: int) -> Alternative:
    labels = _whole_matches(problem, placement, labels_on(problem, atoms, slot), slot)
    refused = _costliest_refusal(problem, placement, [atom for atom in atoms if atom not in labels], slot)
    if not any(_computes(problem, atom) for atom in labels):
        return Alternative(problem.backends[slot], None, 0, refused)
    return as_alternative(problem, slot, labels, mover.move(labels), refused)


def _whole_matches(problem: Problem, placement: Placement, labels: dict[int, int], slot: int) -> dict[int, int]:
    """Without the parts of a match if its backend cannot run the other parts alone."""
    while True:
        stuck: set[int] = set()
        for claim in {problem.labels[atom][placement.labels[atom]].claim for atom in labels} - {-1}:
            partners = problem.atoms_of_claim[claim]
            owner = problem.claims[claim].backend
            if any(atom not in labels and problem.plain(atom, owner) is None for atom in partners):
                stuck.update(partners)
        if stuck.isdisjoint(labels):
            return labels
        labels = labels_on(problem, [atom for atom in labels if atom not in stuck], slot)


def as_alternative(
    problem: Problem, slot: int, labels: Mapping[int, int], move: Move, refused: Refusal | None = None
) -> Alternative:
    """A move in words.

    Args:
        labels: that were wanted.
        refused: why nothing more goes; a refusal of a region comes first.
    """
    if move.refusal is not None:
        atom, owner, why = move.refusal
        refused = Refusal(problem.atoms.cores[atom], problem.backends[owner], why.code, why.detail)
    nodes = sum(len(problem.atoms.members[atom]) for atom in labels)
    return Alternative(problem.backends[slot], move.change_s, nodes, refused)


def refusal_of(problem: Problem, atom: int, slot: int) -> Refusal | None:
    """Why a backend does not run an atom by itself."""
    core = problem.atoms.cores[atom]
    verdict = problem.candidates.verdicts[core][slot]
    if not isinstance(verdict, Unsupported):
        return None
    return Refusal(core, problem.backends[slot], verdict.code, verdict.detail)


def _computes(problem: Problem, atom: int) -> bool:
    return not is_free(problem.graph.node_by_name[problem.atoms.cores[atom]])


def _costliest_refusal(problem: Problem, placement: Placement, atoms: Sequence[int], slot: int) -> Refusal | None:
    """The refusal of the atom that costs most now; the first of equals."""
    costs = problem.costs
    ordered = sorted(atoms, key=lambda atom: (not _computes(problem, atom), -costs[atom][placement.labels[atom]], atom))
    return next((why for atom in ordered if (why := refusal_of(problem, atom, slot)) is not None), None)
