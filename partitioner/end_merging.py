"""End merging: what stands alone at either end of a graph becomes one region, on devices where starting takes longer.

Place: between solving and assembling. Input: a placement. Output: a placement of the same ops.
A training step has hundreds of ops that wait for no other or that none waits for: a conversion of each weight before it
is used, one of each gradient after it was made, a counter of each batch norm. Each takes less time on a GPU than
starting it. A backend that starts many at once (``Traits.gathers``) gets them as one region.
- Its regions that wait for no other region are one, and so are those that no other waits for.
- Conversions that another backend starts one by one are given to it, those of inputs to the first and those of results
  to the last, if the energy rises by less than what starting them takes: as much as entering a region. The energy does
  not know of starts; ``starting_seconds`` says what they add, so that plans are compared with them.
Regions of a search are connected, since nothing is saved between regions that share no value; here it is.
Invariants: the quotient graph stays without cycles: nothing leads into the first region, nothing out of the last.
Memory: a region holds what it reads and makes all at once, so at the start only what makes no more than it reads is
gathered, and at the end what reads no more than it makes, but for vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mixbackend.contracts import Backend, TensorMeta
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.energy import Placement, fuses, true_energy
from mixbackend.partitioner.improve import refused_regions
from mixbackend.partitioner.problem import Problem

VECTOR = 1 << 16
"""Bytes that may be held whatever they are for: statistics of channels, counters."""

_CONVERSIONS = frozenset({"aten._to_copy.default"})


@dataclass(frozen=True)
class _End:
    """One end of a graph: ``first`` is its start."""

    first: bool

    def beyond(self, problem: Problem, atom: int) -> Sequence[int]:
        """Atoms on the side where nothing may be."""
        return problem.predecessors[atom] if self.first else problem.successors[atom]


def merge_ends(problem: Problem, placement: Placement, rules: RegionRules, backends: Sequence[Backend]) -> Placement:
    """See the module's docstring."""
    if problem.graph.device_type in ("cpu", "meta"):
        return placement
    for slot, backend in enumerate(backends):
        if not backend.traits().gathers:
            continue
        for end in (_End(True), _End(False)):
            placement = _united(problem, placement, slot, end, rules)
            placement = _with_conversions(problem, placement, slot, end, rules)
    return placement


def starting_seconds(problem: Problem, placement: Placement, backends: Sequence[Backend]) -> float:
    """What starting conversions at the ends one by one takes, where some backend would start them at once."""
    if problem.graph.device_type in ("cpu", "meta"):
        return 0.0
    slot = next((slot for slot, backend in enumerate(backends) if backend.traits().gathers), None)
    if slot is None:
        return 0.0
    apart = {atom for end in (_End(True), _End(False)) for atom in _apart(problem, placement, slot, end)}
    return len(apart) * problem.entry[slot]


def _with_conversions(problem: Problem, placement: Placement, slot: int, end: _End, rules: RegionRules) -> Placement:
    """The placement with conversions at an end given to a backend, where all backends take what they have then."""
    kept: frozenset[int] = frozenset()
    while True:
        given = _given(problem, placement, slot, end, kept, rules)
        moved = sum(one != other for one, other in zip(given.labels, placement.labels, strict=True))
        if not moved:
            return placement
        refused = {given.regions[atoms[0]] for atoms, _ in refused_regions(problem, given, rules)} - kept
        if not refused:
            break
        kept |= refused
    before, after = (true_energy(problem, item, rules.price) for item in (placement, given))
    return given if after < before + moved * problem.entry[slot] else placement


def _united(problem: Problem, placement: Placement, slot: int, end: _End, rules: RegionRules) -> Placement:
    """The backend's regions at an end as one; what may not be there stays a region."""
    members: dict[int, list[int]] = {}
    for atom, region in enumerate(placement.regions):
        members.setdefault(region, []).append(atom)
    alone = [
        region
        for region, atoms in members.items()
        if _owner(problem, placement, atoms[0]) == slot
        and all(placement.regions[other] == region for atom in atoms for other in end.beyond(problem, atom))
        and _is_held(problem, atoms, end)
    ]
    while misplaced := rules.misplaced(slot, sorted(atom for region in alone for atom in members[region])):
        alone = [region for region in alone if set(misplaced).isdisjoint(members[region])]
    return _merged(placement, alone)


def _merged(placement: Placement, regions: Sequence[int]) -> Placement:
    if len(regions) < 2:
        return placement
    one, all_of_them = min(regions), frozenset(regions)
    made = tuple(one if region in all_of_them else region for region in placement.regions)
    return Placement(placement.labels, made)


def _given(
    problem: Problem, placement: Placement, slot: int, end: _End, kept: frozenset[int], rules: RegionRules
) -> Placement:
    """The placement with conversions at an end given to a backend, as one region with what it has there.

    Args:
        kept: regions that keep theirs.
    """
    atoms = [atom for atom in _apart(problem, placement, slot, end) if placement.regions[atom] not in kept]
    elsewhere = frozenset(rules.of_other_devices(slot, atoms))
    atoms = [atom for atom in atoms if atom not in elsewhere]
    if len(atoms) < 2:
        return placement
    labels, regions = list(placement.labels), list(placement.regions)
    new = max(regions) + 1
    for atom in atoms:
        label = problem.plain(atom, slot)
        assert label is not None
        labels[atom], regions[atom] = label, new
    return _united(problem, Placement(tuple(labels), tuple(regions)), slot, end, rules)


def _apart(problem: Problem, placement: Placement, slot: int, end: _End) -> list[int]:
    """Conversions at an end that their backend starts one by one, and that another would start at once."""
    return [
        atom
        for atom, core in enumerate(problem.atoms.cores)
        if problem.graph.node_by_name[core].op in _CONVERSIONS
        and not end.beyond(problem, atom)
        and _owner(problem, placement, atom) != slot
        and problem.plain(atom, slot) is not None
        and _starts_alone(problem, placement, atom)
        and not _is_laid_out(problem, atom)
        and _is_held(problem, (atom,), end)
    ]


def _starts_alone(problem: Problem, placement: Placement, atom: int) -> bool:
    """Whether an op is a kernel of its own where it is: what it reads and what it makes are in memory."""
    if problem.labels[atom][placement.labels[atom]].claim >= 0:
        return False
    for value in map(problem.values.__getitem__, problem.values_of[atom]):
        near = value.uses if value.producer == atom else [use for use in value.uses if use.atom == atom]
        for use in near:
            inside = placement.regions[use.atom] == placement.regions[value.producer]
            if inside and fuses(problem, value, use.fused, use.atom, placement.labels):
                return False
    return True


def _is_laid_out(problem: Problem, atom: int) -> bool:
    """Whether a convolution of several points has the value: it is laid out anew there, in this pass or another."""
    meta = problem.graph.node_by_name[problem.atoms.cores[atom]].outputs[0]
    numbers = (problem.values[number] for number in problem.values_of[atom])
    near = {other for value in numbers for other in (value.producer, *(use.atom for use in value.uses))}
    classes = {problem.candidates.views[problem.atoms.cores[other]].op_class for other in near}
    return "convolution" in classes and isinstance(meta, TensorMeta) and any(size != 1 for size in meta.shape[2:])


def _owner(problem: Problem, placement: Placement, atom: int) -> int:
    return problem.labels[atom][placement.labels[atom]].backend


def _is_held(problem: Problem, atoms: Sequence[int], end: _End) -> bool:
    """Whether holding all that the atoms read, or all that they make, takes no more memory than it spares."""
    inside = set(atoms)
    views = [problem.candidates.views[name] for atom in atoms for name in problem.atoms.members[atom]]
    own = {view.node.name for view in views}
    read = {item.name: item.meta for view in views for item in view.inputs if item.name not in own}
    made = [
        problem.graph.node_by_name[value.name].outputs[0]
        for value in {number: problem.values[number] for atom in atoms for number in problem.values_of[atom]}.values()
        if value.producer in inside and (value.output or any(use.atom not in inside for use in value.uses))
    ]
    before, after = _bytes(read.values()), _bytes(made)
    return (after - before if end.first else before - after) <= VECTOR


def _bytes(metas: Iterable[object]) -> int:
    return sum(meta.bytes() for meta in metas if isinstance(meta, TensorMeta))
