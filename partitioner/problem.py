"""The placement problem with all its prices: what the search, the energy and the bound are about.

Place: after judging, matching and gluing. Input: candidates, claims, atoms, a cost model, preferences and pins.
Output: ``Problem``, in which everything is a small number: atoms, backends, labels, values.
A label of an atom is a backend alone, or a backend with one claim (a matched pattern).
Units: seconds.
Invariants: atom numbers are a legal execution order; every atom has at least one label (else ``PlacementError``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from mixbackend.contracts import OpGraph
from mixbackend.partitioner.atoms import Atoms
from mixbackend.partitioner.judging import Candidates
from mixbackend.partitioner.matching import Claim


class Label(NamedTuple):
    """One way to run an atom: a backend, and the number of the claim it runs inside (-1 for none)."""

    backend: int
    claim: int


class Use(NamedTuple):
    """One atom reading one value.

    Attributes:
        atom: the reader.
        reads: seconds to read it when it is materialised, per backend.
        fused: bit mask of the backends that keep the value out of memory between producer and reader.
    """

    atom: int
    reads: tuple[float, ...]
    fused: int


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor that an atom produces and that may be needed in memory.

    Attributes:
        name: of the node that it is the output of.
        producer: atom.
        writes: seconds to materialise it, per producing backend.
        crossings: seconds to hand it over, per producing backend, per consuming backend.
        uses: what reads it.
        output: whether the graph returns it.
    """

    name: str
    producer: int
    writes: tuple[float, ...]
    crossings: tuple[tuple[float, ...], ...]
    uses: tuple[Use, ...]
    output: bool


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that the energy depends on.

    Attributes:
        graph: the op graph.
        candidates: verdicts after preferences and pins.
        atoms: the grouping.
        claims: matched patterns.
        backends: names in the user's order.
        labels: per atom, its labels; earlier wins ties.
        costs: per atom, per label: seconds of its op, and of reading graph inputs.
        values: what flows between atoms.
        edges: (earlier, later) pairs of atoms: every order that a plan must keep, each once.
        entry: seconds to call one region, per backend, with ``switch``.
        pools: name of the pool of threads, per backend.
        switch: the part of ``entry`` that plans on one pool do not pay, per backend.
        ops: per atom, per label: the part of ``costs`` that is the op itself; for explanations.
        required: (atom, backend number) pairs that a rule of the user requires.
    """

    graph: OpGraph
    candidates: Candidates
    atoms: Atoms
    claims: tuple[Claim, ...]
    backends: tuple[str, ...]
    labels: tuple[tuple[Label, ...], ...]
    costs: tuple[tuple[float, ...], ...]
    values: tuple[Value, ...]
    edges: tuple[tuple[int, int], ...]
    entry: tuple[float, ...]
    pools: tuple[str, ...]
    switch: tuple[float, ...]
    ops: tuple[tuple[float, ...], ...]
    required: frozenset[tuple[int, int]] = frozenset()

    @property
    def size(self) -> int:
        """Number of atoms."""
        return len(self.labels)

    @cached_property
    def values_of(self) -> tuple[tuple[int, ...], ...]:
        """Per atom, the values it produces or reads."""
        touched: list[list[int]] = [[] for _ in range(self.size)]
        for number, value in enumerate(self.values):
            for atom in dict.fromkeys((value.producer, *(use.atom for use in value.uses))):
                touched[atom].append(number)
        return tuple(map(tuple, touched))

    @cached_property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Pairs of atoms that share a value, producer first, each once, ordered by reader: what connects a region."""
        pairs = {(value.producer, use.atom) for value in self.values for use in value.uses}
        return tuple(sorted(pairs, key=lambda pair: (pair[1], pair[0])))

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Per atom, the atoms linked to it."""
        near: list[list[int]] = [[] for _ in range(self.size)]
        for first, second in self.links:
            near[first].append(second)
            near[second].append(first)
        return tuple(map(tuple, near))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Per atom, the atoms that must run later."""
        later: list[list[int]] = [[] for _ in range(self.size)]
        for first, second in self.edges:
            later[first].append(second)
        return tuple(map(tuple, later))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Per atom, the atoms that must run earlier."""
        earlier: list[list[int]] = [[] for _ in range(self.size)]
        for first, second in self.edges:
            earlier[second].append(first)
        return tuple(map(tuple, earlier))

    @cached_property
    def label_numbers(self) -> tuple[dict[Label, int], ...]:
        """Per atom, the position of each of its labels."""
        return tuple({label: number for number, label in enumerate(labels)} for labels in self.labels)

    @cached_property
    def atoms_of_claim(self) -> tuple[tuple[int, ...], ...]:
        """Per claim, the atoms that have a label of it."""
        holders: list[list[int]] = [[] for _ in self.claims]
        for atom, labels in enumerate(self.labels):
            for label in labels:
                if label.claim >= 0:
                    holders[label.claim].append(atom)
        return tuple(map(tuple, holders))

    @cached_property
    def whole_pools(self) -> frozenset[str]:
        """Pools of threads that a plan could stay on to save switches: they can run every atom."""
        pools = {pool for pool, seconds in zip(self.pools, self.switch, strict=True) if seconds}
        for labels in self.labels if pools else ():
            pools &= {self.pools[label.backend] for label in labels}
        return frozenset(pools)

    def plain(self, atom: int, backend: int) -> int | None:
        """Position of the label "this backend without a claim"; ``None`` if the atom has none."""
        return self.label_numbers[atom].get(Label(backend, -1))

    def __str__(self) -> str:
        lines = [f"problem of {self.graph.id}: {self.size} atoms, {len(self.values)} values"]
        for atom, (labels, costs) in enumerate(zip(self.labels, self.costs, strict=True)):
            prices = ", ".join(
                self.backends[label.backend] + (f"#{label.claim}" if label.claim >= 0 else "") + f" {cost:.3e}"
                for label, cost in zip(labels, costs, strict=True)
            )
            lines.append(f"  {atom} {' '.join(self.atoms.members[atom])}: {prices}")
        for value in self.values:
            readers = " ".join(str(use.atom) for use in value.uses)
            lines.append(f"  %{value.name}: {value.producer} -> {readers}{' returned' if value.output else ''}")
        return "\n".join(lines)
