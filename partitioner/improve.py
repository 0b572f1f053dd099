"""Exact region costs: what the labelling could not see is put right here.

Place: after regions were formed. Input: a legal placement. Output: a legal placement that every backend accepts, with a
true energy that no single step lowers; and the refusals of regions on the way.
Steps: a region that its backend refuses goes to the next best labels of its atoms, found by the same search with its
surroundings fixed (never straight to eager). A region is merged with, or absorbed by, its neighbours, or given to
another backend, while the true energy falls.
Invariants: legality is kept by every step; each refusal bans a label for good, so the repair ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixbackend.contracts import PlacementError, Unsupported
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.energy import Homes, Placement, modelled_energies, modelled_seconds, value_parts
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.quotient import Quotient
from mixbackend.partitioner.regions import form_regions
from mixbackend.partitioner.search import Neighbourhood

PASSES = 3


@dataclass(frozen=True)
class Repaired:
    """A placement that all backends accept.

    Attributes:
        placement: labels and regions.
        refusals: (atom, backend number, refusal) of the regions that were refused.
    """

    placement: Placement
    refusals: tuple[tuple[int, int, Unsupported], ...]


def satisfy(
    problem: Problem,
    labels: Sequence[int],
    rules: RegionRules,
    neighbourhood: Neighbourhood,
    torn: frozenset[int] = frozenset(),
    only: frozenset[int] | None = None,
) -> Repaired:
    """Form regions and hand on those that their backends refuse.

    Args:
        torn: claims that cannot be kept.
        only: backend numbers to hand on to where an atom has such a label left.

    Raises:
        PlacementError: some atom has no backend left.
        EntangledClaimsError: see ``form_regions``.
    """
    refusals: dict[tuple[int, int], Unsupported] = {}
    freed = [atom for atom, label in enumerate(labels) if problem.labels[atom][label].claim in torn]
    while True:
        if freed:
            banned = _banned(problem, freed, refusals, torn, only)
            labels = _next_best(problem, neighbourhood, freed, labels, banned, refusals)
        placement = form_regions(problem, labels)
        refused = refused_regions(problem, placement, rules)
        if not refused:
            return Repaired(placement, tuple((atom, slot, why) for (atom, slot), why in sorted(refusals.items())))
        labels = placement.labels
        for atoms, refusal in refused:
            slot = problem.labels[atoms[0]][placement.labels[atoms[0]]].backend
            refusals.update({(atom, slot): refusal for atom in atoms})
        freed = sorted({atom for atoms, _ in refused for atom in atoms})


def refused_regions(problem: Problem, placement: Placement, rules: RegionRules) -> list[tuple[list[int], Unsupported]]:
    """Regions that their backends do not take, as (the atoms that have to leave, refusal)."""
    if all(rules.trivial(slot) for slot in range(len(problem.backends))):
        return []
    members: dict[int, list[int]] = {}
    for atom, region in enumerate(placement.regions):
        members.setdefault(region, []).append(atom)
    seconds = modelled_energies(problem, placement)
    answers = []
    for region, atoms in members.items():
        backend = problem.labels[atoms[0]][placement.labels[atoms[0]]].backend
        refusal = rules.refusal(backend, atoms, seconds[region])
        if refusal is not None:
            answers.append((_with_matches(problem, placement, rules.misplaced(backend, atoms)) or atoms, refusal))
    return answers


def _with_matches(problem: Problem, placement: Placement, atoms: Sequence[int]) -> list[int]:
    """Some atoms, and those that a chosen match holds together with them."""
    claims = {problem.labels[atom][placement.labels[atom]].claim for atom in atoms} - {-1}
    return sorted({*atoms, *(other for claim in claims for other in problem.atoms_of_claim[claim])})


def _banned(
    problem: Problem,
    atoms: Sequence[int],
    refusals: dict[tuple[int, int], Unsupported],
    torn: frozenset[int],
    only: frozenset[int] | None,
) -> dict[int, list[int]]:
    """Label positions that each atom may not take."""
    banned: dict[int, list[int]] = {}
    for atom in atoms:
        labels = problem.labels[atom]
        gone = {
            number for number, label in enumerate(labels) if (atom, label.backend) in refusals or label.claim in torn
        }
        if len(gone) == len(labels):
            raise _nowhere(problem, atom, refusals)
        other = {number for number, label in enumerate(labels) if only is not None and label.backend not in only}
        banned[atom] = sorted(gone | other) if len(gone | other) < len(labels) else sorted(gone)
    return banned


def _next_best(
    problem: Problem,
    neighbourhood: Neighbourhood,
    atoms: Sequence[int],
    labels: Sequence[int],
    banned: dict[int, list[int]],
    refusals: dict[tuple[int, int], Unsupported],
) -> tuple[int, ...]:
    chosen = neighbourhood.search(atoms, labels, banned)
    if chosen is None:
        raise _nowhere(problem, atoms[0], refusals)
    moved = list(labels)
    for atom, label in zip(atoms, chosen, strict=True):
        moved[atom] = label
    return tuple(moved)


def _nowhere(problem: Problem, atom: int, refusals: dict[tuple[int, int], Unsupported]) -> PlacementError:
    core = problem.atoms.cores[atom]
    node = problem.graph.node_by_name[core]
    verdicts = zip(problem.backends, problem.candidates.verdicts[core], strict=True)
    answers = [
        f"{name}: {verdict.code} {verdict.detail}" for name, verdict in verdicts if isinstance(verdict, Unsupported)
    ]
    answers += [
        f"{problem.backends[slot]}: {why.code} {why.detail}" for (other, slot), why in refusals.items() if other == atom
    ]
    return PlacementError(
        what=f"no backend takes a region with node %{core} ({node.op}): " + "; ".join(answers),
        where=node.source or node.module or f"graph {problem.graph.id}",
        hint="allow a backend without region conditions (eager), or lower min_region",
    )


def improve(problem: Problem, placement: Placement, rules: RegionRules) -> Placement:
    """Merge, absorb and hand over regions while the true energy falls."""
    for _ in range(PASSES):
        improver = _Improver(problem, placement, rules)
        improver.run()
        better = improver.quotient.placement()
        if better == placement:
            break
        placement = better
    return placement


class _Improver:
    def __init__(self, problem: Problem, placement: Placement, rules: RegionRules) -> None:
        self._problem = problem
        self._rules = rules
        self.quotient = Quotient(problem, placement)

    def run(self) -> None:
        for region in sorted(self.quotient.members):
            if self.quotient.exists(region):
                self._merge(region)
        for region in sorted(self.quotient.members):
            if self.quotient.exists(region):
                self._hand_over(region)

    def _merge(self, region: int) -> None:
        """Merge with neighbours of the same backend: never dearer under the model."""
        quotient, merged = self.quotient, True
        while merged:
            merged = False
            for other in quotient.linked(region):
                if quotient.backend(other) != quotient.backend(region) or not quotient.may_merge(region, other):
                    continue
                if self._accepts(quotient.backend(region), {region, other}):
                    region = quotient.merge(region, other)
                    merged = True
                    break

    def _hand_over(self, region: int) -> None:
        """Give a region to the backend that lowers the energy most, if any does."""
        quotient = self.quotient
        present = quotient.backend(region)
        near = dict.fromkeys(quotient.backend(other) for other in quotient.linked(region))
        slots = [slot for slot in near if slot != present] or range(len(self._problem.backends))
        best: tuple[float, int, list[int]] | None = None
        for slot in slots:
            labels = None if slot == present else self._labels(region, slot)
            change = None if labels is None else self._change(region, slot, labels)
            if labels is not None and change is not None and change < 0.0 and (best is None or change < best[0]):
                best = (change, slot, labels)
        if best is not None:
            quotient.relabel(quotient.members[region], best[2])
            self._merge(region)

    def _labels(self, region: int, slot: int) -> list[int] | None:
        labels = [self._problem.plain(atom, slot) for atom in self.quotient.members[region]]
        known = [label for label in labels if label is not None]
        return known if len(known) == len(labels) else None

    def _accepts(self, backend: int, regions: set[int]) -> bool:
        if self._rules.trivial(backend):
            return True
        atoms = sorted(atom for region in regions for atom in self.quotient.members[region])
        homes = _United(self.quotient.regions, regions)
        seconds = modelled_seconds(self._problem, atoms, self.quotient.labels, homes)
        return self._rules.refusal(backend, atoms, seconds) is None

    def _change(self, region: int, slot: int, labels: list[int]) -> float | None:
        """Seconds by which the true energy rises if a region goes to another backend and merges there.

        ``None`` if the backend would refuse the result.
        """
        problem, quotient = self._problem, self.quotient
        atoms = quotient.members[region]
        present = [quotient.labels[atom] for atom in atoms]
        before = self._local(atoms, quotient.regions) + problem.entry[quotient.backend(region)]
        quotient.relabel(atoms, labels)
        group = {region}
        for other in quotient.linked(region):
            if quotient.backend(other) == slot and quotient.may_join(group, other):
                group.add(other)
        after = self._local(atoms, _United(quotient.regions, group)) + problem.entry[slot] * (2 - len(group))
        taken = self._accepts(slot, group)
        quotient.relabel(atoms, present)
        margin = 1e-12 * abs(before)
        return after - before + margin if taken else None

    def _local(self, atoms: Sequence[int], regions: Homes) -> float:
        """Seconds of some atoms and of all values that touch them."""
        problem, labels = self._problem, self.quotient.labels
        seconds = sum(problem.costs[atom][labels[atom]] for atom in atoms)
        for number in dict.fromkeys(number for atom in atoms for number in problem.values_of[atom]):
            written, readers = value_parts(problem, problem.values[number], labels, regions)
            seconds += written + sum(cost for _, cost in readers)
        return seconds


class _United:
    """Region numbers as if some regions were one."""

    def __init__(self, regions: Sequence[int], group: set[int]) -> None:
        self._regions = regions
        self._group = group

    def __getitem__(self, atom: int) -> int:
        region = self._regions[atom]
        return -1 if region in self._group else region
