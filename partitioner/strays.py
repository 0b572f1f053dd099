"""Strays: what a backend refused because it is too small by itself joins a region of that backend.

Place: between solving and assembling, before ``siblings``. Input: a placement, and what was refused on the way to it.
Output: a placement in which such regions are back.
Regions of a search are connected by values from one op to another. A gradient of a weight shares none with the rest of
a backward graph: it reads what goes in and is returned. By itself a backend may find it not worth an entry, so it goes
to another, with an entry that costs as much. Beside other ops of the backend it needs no entry at all.
Invariants: the quotient graph stays without cycles; no backend refuses what comes of it; the energy falls each time.
Non-goals: two strays of one backend do not become a region where that backend has no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixbackend.contracts import Unsupported
from mixbackend.partitioner.conditions import NOT_WORTH_IT, RegionRules
from mixbackend.partitioner.energy import Placement, modelled_seconds, true_energy
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.quotient import Quotient

_TRIED = 4
"""Regions that a stray is tried with at most."""


def take_back(
    problem: Problem, placement: Placement, refusals: Sequence[tuple[int, int, Unsupported]], rules: RegionRules
) -> Placement:
    """See the module's docstring.

    Args:
        refusals: (atom, backend number, refusal) of the regions that were refused.
    """
    seconds = true_energy(problem, placement, rules.price)
    for slot, atoms in _strays(problem, placement, refusals):
        for other in _hosts(problem, placement, slot, atoms):
            joined = _joined(problem, placement, slot, atoms, other, rules)
            if joined is None:
                continue
            after = true_energy(problem, joined, rules.price)
            if after < seconds:
                placement, seconds = joined, after
                break
    return placement


def _strays(
    problem: Problem, placement: Placement, refusals: Sequence[tuple[int, int, Unsupported]]
) -> Iterator[tuple[int, list[int]]]:
    """(backend, atoms) of whole regions of others that this backend could run and found too small."""
    too_small: dict[int, set[int]] = {}
    for atom, slot, why in refusals:
        if why.code in NOT_WORTH_IT and problem.plain(atom, slot) is not None:
            too_small.setdefault(slot, set()).add(atom)
    members: dict[int, list[int]] = {}
    for atom, region in enumerate(placement.regions if too_small else ()):
        members.setdefault(region, []).append(atom)
    for slot, atoms in too_small.items():
        for region in sorted({placement.regions[atom] for atom in atoms}):
            if atoms.issuperset(members[region]) and _backend(problem, placement, members[region][0]) != slot:
                yield slot, members[region]


def _hosts(problem: Problem, placement: Placement, slot: int, atoms: Sequence[int]) -> list[int]:
    """Regions of a backend that a stray could join: those that read what it reads first, then the nearest."""
    read = _reads(problem, atoms)
    distance: dict[int, tuple[bool, int]] = {}
    for atom, region in enumerate(placement.regions):
        if _backend(problem, placement, atom) == slot:
            here = (read.isdisjoint(_reads(problem, (atom,))), abs(atom - atoms[0]))
            distance[region] = min(here, distance.get(region, here))
    return sorted(distance, key=distance.__getitem__)[:_TRIED]


def _reads(problem: Problem, atoms: Sequence[int]) -> set[str]:
    """Inputs of the graph that some atoms read, through views or not."""
    base_of = problem.atoms.base_of
    views = (problem.candidates.views[name] for atom in atoms for name in problem.atoms.members[atom])
    return {base_of[item.name] for view in views for item in view.inputs if item.name in base_of}


def _joined(
    problem: Problem, placement: Placement, slot: int, atoms: Sequence[int], host: int, rules: RegionRules
) -> Placement | None:
    """The placement with a stray in a host; ``None`` where that is not legal or the backend refuses it."""
    quotient = Quotient(problem, placement)
    stray = placement.regions[atoms[0]]
    if not quotient.may_merge(stray, host):
        return None
    labels = [label for atom in atoms if (label := problem.plain(atom, slot)) is not None]
    quotient.relabel(atoms, labels)
    together, joined = quotient.members[quotient.merge(stray, host)], quotient.placement()
    seconds = modelled_seconds(problem, together, joined.labels, joined.regions)
    return joined if rules.refusal(slot, together, seconds) is None else None


def _backend(problem: Problem, placement: Placement, atom: int) -> int:
    return problem.labels[atom][placement.labels[atom]].backend
