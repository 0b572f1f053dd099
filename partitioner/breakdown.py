"""What a node's estimate is made of: its op with the origin of the figure, reads, writes, crossings, share of entries.

Place: beneath ``counterfactuals``. Input: a priced problem, a placement of it. Output: ``Parts`` of one atom.
Invariants: the parts of all atoms add up to the true energy of the placement (without backends' own prices of whole
regions). Attribution is that of ``energy``: a value is written by its producer, read by each reader that does not fuse
with it, and its crossing is paid by the first reader on each other backend.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixbackend.contracts import CostModel, Supported
from mixbackend.contracts.cost import Provenance
from mixbackend.partitioner.atoms import is_free
from mixbackend.partitioner.energy import Placement, saves_switches, value_parts
from mixbackend.partitioner.problem import Problem


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of one node, with the views and ``getitem`` that follow it.

    Attributes:
        op_s: the computation, preference factor applied.
        origin: where that figure came from; ``None`` where nothing is computed.
        pattern: name of the match that it is part of, ``""`` for none; the cost of a match is that of its last node.
        reads_s: what it reads from memory.
        writes_s: its value, if another atom or the caller needs it in memory.
        crossings_s: taking over what other backends made.
        entry_s: its share of calling the region: all atoms of a region bear the same.
    """

    op_s: float
    origin: Provenance | None
    pattern: str
    reads_s: float
    writes_s: float
    crossings_s: float
    entry_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.op_s + self.reads_s + self.writes_s + self.crossings_s + self.entry_s


def parts_of(problem: Problem, placement: Placement, atom: int, costs: CostModel) -> Parts:
    """What the estimate of one atom is made of."""
    number = placement.labels[atom]
    label = problem.labels[atom][number]
    op = problem.ops[atom][number]
    reads, writes, crossings = problem.costs[atom][number] - op, 0.0, 0.0
    for place in problem.values_of[atom]:
        value = problem.values[place]
        written, readers = value_parts(problem, value, placement.labels, placement.regions)
        writes += written if value.producer == atom else 0.0
        paid = sum(seconds for reader, seconds in readers if reader == atom)
        if any(reader == atom for reader, _ in readers):
            read = next(use.reads[label.backend] for use in value.uses if use.atom == atom)
            reads, crossings = reads + read, crossings + paid - read
    sharing = placement.regions.count(placement.regions[atom])
    owners = (problem.labels[other][chosen].backend for other, chosen in enumerate(placement.labels))
    saved = problem.switch[label.backend] if saves_switches(problem, owners) else 0.0
    return Parts(
        op_s=op,
        origin=_origin(problem, atom, number, costs),
        pattern=problem.claims[label.claim].match.pattern if label.claim >= 0 else "",
        reads_s=reads,
        writes_s=writes,
        crossings_s=crossings,
        entry_s=(problem.entry[label.backend] - saved) / sharing,
    )


def _origin(problem: Problem, atom: int, number: int, costs: CostModel) -> Provenance | None:
    core, label = problem.atoms.cores[atom], problem.labels[atom][number]
    name = problem.backends[label.backend]
    if is_free(problem.graph.node_by_name[core]):
        return None
    claim = problem.claims[label.claim] if label.claim >= 0 else None
    if claim is not None and claim.cost is not None and core in claim.match.nodes:
        return "backend"
    if claim is not None and claim.priced_as is not None and core in claim.match.nodes:
        return costs.op(name, claim.priced_as).provenance
    verdict = problem.candidates.verdicts[core][label.backend]
    if isinstance(verdict, Supported) and verdict.cost is not None:
        return "backend"
    return costs.op(name, problem.candidates.views[core]).provenance
