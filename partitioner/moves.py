"""One change to a placement with everything else as it is: what it costs, or why it cannot be.

Place: beneath ``alternatives``. Input: a problem, a legal placement, other labels for some atoms. Output: ``Move``.
The regions of these atoms are cut where the new labels demand it, at levels as ``regions`` cuts components; the pieces
merge with neighbours on their backend wherever that is legal; nothing else changes. A chosen match that loses an atom
is dissolved: its other atoms run on the same backend without it.
Invariants: the placement of a move is legal, all its changed regions are accepted by their backends, and ``change_s``
is exactly the difference of the two true energies. Cuts are tried from the front and from the back, and merges in one
order, so that some other cut can be cheaper: a change is never understated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from mixbackend.contracts import Unsupported
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.energy import Placement, modelled_seconds, saves_switches, true_energy, value_parts
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.quotient import Quotient


@dataclass(frozen=True)
class Move:
    """What became of a change.

    Attributes:
        change_s: seconds by which the true energy rises; ``None`` if no legal plan was found.
        placement: with the change, ``None`` like ``change_s``.
        refusal: (atom, backend number, reason) of a region that its backend would not take.
    """

    change_s: float | None = None
    placement: Placement | None = None
    refusal: tuple[int, int, Unsupported] | None = None


class Mover:
    """Tries changes of one placement, each from the start."""

    def __init__(self, problem: Problem, placement: Placement, rules: RegionRules) -> None:
        self._problem = problem
        self._rules = rules
        self._base = Quotient(problem, placement)
        self.seconds = true_energy(problem, placement, rules.price)

    def members(self, region: int) -> Sequence[int]:
        """Atoms of a region of the placement, in graph order."""
        return self._base.members[region]

    def move(self, wanted: Mapping[int, int]) -> Move:
        """Give atoms other labels.

        Args:
            wanted: label by atom; a match is wanted with all its atoms.
        """
        labels = self._with_dissolved(wanted)
        if labels is None:
            return Move()
        touched = sorted({self._base.regions[atom] for atom in wanted})
        cut = any(self._is_cut(region, labels) for region in touched)
        tries = [self._try(labels, touched, backwards) for backwards in ((False, True) if cut else (False,))]
        done = [item for item in tries if item.change_s is not None]
        return min(done, key=lambda item: item.change_s or 0.0) if done else tries[0]

    def _with_dissolved(self, wanted: Mapping[int, int]) -> dict[int, int] | None:
        """Also the labels of atoms in a match that loses one of the wanted; ``None`` if they cannot run without it."""
        problem, present = self._problem, self._base.labels
        labels = dict(wanted)
        for claim in {problem.labels[atom][present[atom]].claim for atom in wanted} - {-1}:
            for atom in problem.atoms_of_claim[claim]:
                label = problem.labels[atom][present[atom]]
                if atom in wanted or label.claim != claim:
                    continue
                plain = problem.plain(atom, label.backend)
                if plain is None:
                    return None
                labels[atom] = plain
        return labels

    def _is_cut(self, region: int, labels: Mapping[int, int]) -> bool:
        problem, present = self._problem, self._base.labels
        owners = {problem.labels[atom][labels.get(atom, present[atom])].backend for atom in self._base.members[region]}
        return len(owners) > 1

    def _try(self, labels: Mapping[int, int], touched: Sequence[int], backwards: bool) -> Move:
        quotient = self._base.copy()
        quotient.relabel(list(labels), list(labels.values()))
        pieces: list[int] = []
        for region in touched:
            parts = [quotient.members[region]]
            if self._is_cut(region, labels):
                parts = _cut(self._problem, parts[0], quotient.labels, backwards)
            if not parts:
                return Move()
            pieces += quotient.split(region, parts) if len(parts) > 1 else [region]
        for piece in pieces:
            if quotient.exists(piece):
                self._merge(quotient, piece)
        changed = sorted({quotient.regions[atom] for region in touched for atom in self._base.members[region]})
        refusal = self._refused(quotient, changed)
        if refusal is not None or self._is_torn(quotient, labels):
            return Move(refusal=refusal)
        return Move(self._change(quotient, labels, changed), quotient.placement())

    def _merge(self, quotient: Quotient, piece: int) -> None:
        """Join a piece with the neighbours that it touches."""
        linked = (other for atom in quotient.members[piece] for other in self._problem.neighbours[atom])
        near = {quotient.regions[other]: other for other in linked}
        merged = True
        while merged:
            merged = False
            for atom in [near[region] for region in sorted(near)]:
                other = quotient.regions[atom]
                if other == piece or quotient.backend(other) != quotient.backend(piece):
                    continue
                if quotient.may_merge(piece, other) and self._accepts(quotient, piece, other):
                    piece = quotient.merge(piece, other)
                    merged = True

    def _accepts(self, quotient: Quotient, first: int, second: int) -> bool:
        slot = quotient.backend(first)
        if self._rules.trivial(slot):
            return True
        atoms = sorted((*quotient.members[first], *quotient.members[second]))
        homes = {**dict.fromkeys(self._surroundings(atoms), -1), **dict.fromkeys(atoms, first)}
        seconds = modelled_seconds(self._problem, atoms, quotient.labels, homes)
        return self._rules.refusal(slot, atoms, seconds) is None

    def _surroundings(self, atoms: Sequence[int]) -> Iterable[int]:
        values = dict.fromkeys(number for atom in atoms for number in self._problem.values_of[atom])
        for number in values:
            value = self._problem.values[number]
            yield value.producer
            yield from (use.atom for use in value.uses)

    def _refused(self, quotient: Quotient, regions: Sequence[int]) -> tuple[int, int, Unsupported] | None:
        for region in regions:
            slot, atoms = quotient.backend(region), quotient.members[region]
            if self._rules.trivial(slot):
                continue
            seconds = modelled_seconds(self._problem, atoms, quotient.labels, quotient.regions)
            why = self._rules.refusal(slot, atoms, seconds)
            if why is not None:
                return atoms[0], slot, why
        return None

    def _is_torn(self, quotient: Quotient, labels: Mapping[int, int]) -> bool:
        """Whether the atoms of a wanted match are not in one region."""
        home: dict[int, int] = {}
        for atom, label in labels.items():
            claim = self._problem.labels[atom][label].claim
            if claim >= 0 and home.setdefault(claim, quotient.regions[atom]) != quotient.regions[atom]:
                return True
        return False

    def _change(self, quotient: Quotient, labels: Mapping[int, int], changed: Sequence[int]) -> float:
        """Difference of the true energies, from what can differ alone, unless something is priced as a whole."""
        if self._rules.pricing or self._on_one_pool(quotient) or self._on_one_pool(self._base):
            return true_energy(self._problem, quotient.placement(), self._rules.price) - self.seconds
        units: dict[tuple[int, int], list[int]] = {}
        for region in changed:
            for atom in quotient.members[region]:
                units.setdefault((self._base.regions[atom], region), []).append(atom)
        entry = self._problem.entry
        seconds = sum(entry[quotient.backend(region)] for region in changed)
        seconds -= sum(entry[self._base.backend(region)] for region in {before for before, _ in units})
        # Between two atoms of the largest unit nothing changes but by their labels.
        largest = max(units, key=lambda unit: len(units[unit]))
        atoms = {atom for unit, members in units.items() if unit != largest for atom in members}.union(labels)
        return seconds + self._local(quotient, atoms) - self._local(self._base, atoms)

    def _on_one_pool(self, quotient: Quotient) -> bool:
        return saves_switches(self._problem, (quotient.backend(region) for region in quotient.members))

    def _local(self, quotient: Quotient, atoms: Iterable[int]) -> float:
        """Seconds of some atoms and of all values that touch them."""
        problem, listed = self._problem, sorted(atoms)
        seconds = sum(problem.costs[atom][quotient.labels[atom]] for atom in listed)
        for number in dict.fromkeys(number for atom in listed for number in problem.values_of[atom]):
            written, readers = value_parts(problem, problem.values[number], quotient.labels, quotient.regions)
            seconds += written + sum(cost for _, cost in readers)
        return seconds


def _cut(problem: Problem, atoms: Sequence[int], labels: Sequence[int], backwards: bool) -> list[list[int]]:
    """Pieces of one region that is now on several backends, in a legal order; none if matches forbid every cut."""
    backend = {atom: problem.labels[atom][labels[atom]].backend for atom in atoms}
    matched: dict[int, list[int]] = {}
    for atom in atoms:
        claim = problem.labels[atom][labels[atom]].claim
        matched.setdefault(claim if claim >= 0 else -1 - atom, []).append(atom)
    group = {atom: members[0] for members in matched.values() for atom in members}
    before: dict[int, set[int]] = {members[0]: set() for members in matched.values()}
    for atom in atoms:
        for other in problem.successors[atom]:
            if other in group and group[other] != group[atom]:
                first, second = (other, atom) if backwards else (atom, other)
                before[group[second]].add(group[first])
    levels: dict[int, int] = {}
    try:
        for item in TopologicalSorter(before).static_order():
            levels[item] = max((levels[other] + (backend[other] != backend[item]) for other in before[item]), default=0)
    except CycleError:
        return []
    kind = {atom: (backend[atom], levels[group[atom]]) for atom in atoms}
    together = {members[0]: members for members in matched.values()}
    pieces = _connected(problem, kind, group, together)
    sign = -1 if backwards else 1
    return sorted(pieces, key=lambda piece: (sign * kind[piece[0]][1], piece[0]))


def _connected(
    problem: Problem, kind: Mapping[int, tuple[int, int]], group: Mapping[int, int], together: Mapping[int, list[int]]
) -> list[list[int]]:
    """Atoms of one kind that values, orders or matches connect."""
    pieces: list[list[int]] = []
    seen: set[int] = set()
    for start in sorted(kind):
        if start in seen:
            continue
        seen.add(start)
        piece = [start]
        for atom in piece:
            near = (problem.neighbours[atom], problem.successors[atom], problem.predecessors[atom])
            for other in (*together[group[atom]], *(item for items in near for item in items)):
                if other not in seen and kind.get(other) == kind[start]:
                    seen.add(other)
                    piece.append(other)
        pieces.append(sorted(piece))
    return pieces
