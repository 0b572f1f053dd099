"""Siblings: regions of one backend that read the same large tensor, or write what another reads, become one region.

Place: between solving and assembling. Input: a placement. Output: a placement of the same ops on the same backends.
Regions of a search are connected by values from one op to another: a sum, a mean and a largest element of one tensor
are three regions, each of which reads it from memory. A backend that computes them in its own loops reads it once, if
they are one region.
- Readers are brought together on processors alone, and only ops that the backend fuses with pointwise ones before them:
  they run in its loops. Only tensors above ``LARGE`` count: smaller ones stay in cache from one region to the next.
  Weights do not count.
- What writes into an input has no value in common with those that read the input before or after: a counter that each
  layer's cache moves on would be a region of its own, which does next to nothing. It joins a region that reads it.
Invariants: the quotient graph stays without cycles; no backend refuses what comes of it; the energy does not rise: it
loses an entry. It does not know of the reads that are saved, so a search does not look for plans with more siblings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixbackend.contracts import WRITING, Backend, TensorMeta
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.energy import Placement, modelled_seconds, true_energy
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.quotient import Quotient

LARGE = 4 << 20
"""Bytes; more than a core's cache keeps."""


def unite_siblings(
    problem: Problem, placement: Placement, rules: RegionRules, backends: Sequence[Backend]
) -> Placement:
    """See the module's docstring."""
    quotient = Quotient(problem, placement)
    united = False
    for readers in (*_readers_of_large(problem, placement, backends), *_writers(problem)):
        regions = sorted({quotient.regions[atom] for atom in readers})
        for position, first in enumerate(regions):
            for second in regions[position + 1 :]:
                if (
                    quotient.exists(first)
                    and quotient.exists(second)
                    and _may_unite(problem, quotient, rules, first, second)
                ):
                    quotient.merge(first, second)
                    united = True
    if not united:
        return placement
    together = quotient.placement()
    before, after = (true_energy(problem, item, rules.price) for item in (placement, together))
    return together if after <= before else placement


def _readers_of_large(problem: Problem, placement: Placement, backends: Sequence[Backend]) -> Iterator[list[int]]:
    """Per large tensor and backend, the atoms that read it in loops of that backend."""
    if problem.graph.device_type not in ("cpu", "meta"):
        return
    readers: dict[tuple[str, int], list[int]] = {}
    loops = [backend.traits().fused_on(problem.graph.device_type) for backend in backends]
    for atom, core in enumerate(problem.atoms.cores):
        view = problem.candidates.views[core]
        label = problem.labels[atom][placement.labels[atom]]
        if label.claim >= 0 or ("pointwise", view.op_class) not in loops[label.backend]:
            continue
        for item in view.inputs:
            base = problem.atoms.base_of.get(item.name)
            if base is None or item.is_weight or not isinstance(item.meta, TensorMeta):
                continue
            if item.meta.bytes() >= LARGE:
                readers.setdefault((base, label.backend), []).append(atom)
    yield from (atoms for atoms in readers.values() if len(atoms) > 1)


def _writers(problem: Problem) -> Iterator[list[int]]:
    """Atoms that write into an input, each with one that reads it before or after."""
    placed, node_by_name = problem.atoms.atom_of, problem.graph.node_by_name
    for first, second in problem.graph.effects:
        writes = any(node_by_name[name].op in WRITING for name in (first, second))
        if writes and first in placed and second in placed:
            yield [placed[first], placed[second]]


def _may_unite(problem: Problem, quotient: Quotient, rules: RegionRules, first: int, second: int) -> bool:
    backend = quotient.backend(first)
    if quotient.backend(second) != backend or not quotient.may_merge(first, second):
        return False
    if rules.trivial(backend):
        return True
    atoms = sorted((*quotient.members[first], *quotient.members[second]))
    homes = [-1 if region in (first, second) else region for region in quotient.regions]
    return rules.refusal(backend, atoms, modelled_seconds(problem, atoms, quotient.labels, homes)) is None
