"""The tables that models of the lower bound are made of.

Place: below ``bound``. Input: a ``Problem``. Output: what single values cost, and what rings of atoms have in common,
by labels. The layers of a model repeat few of them, and the models of one problem differ little: each is made once.
Invariants: tables are never written into; equal questions get the same one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from mixbackend.partitioner.elimination import Table
from mixbackend.partitioner.problem import Problem, Value

BoolTable = np.ndarray


@dataclass(frozen=True, eq=False)
class ValueTables:
    """What one value costs, by labels.

    Attributes:
        certain: per label of the producer, the write that is due whatever reads it.
        uncertain: per label of the producer, the write that is due if some reader does not fuse.
        crossings: per label of the producer, per reading backend.
        fused: per use, which pairs of labels fuse.
        charged: per use, what each pair of labels is charged.
        alone: whether that is all, so that no state could make it more exact.
    """

    certain: Table
    uncertain: Table
    crossings: Table
    fused: tuple[BoolTable, ...]
    charged: tuple[Table, ...]
    alone: bool


class Tables:
    """Tables that the models of one problem are made of; the layers of a model repeat few of them.

    Arrays of backends are shared by atoms with equal ones, and known by their number from then on.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.entry = np.array(problem.entry)
        self.backends: list[np.ndarray] = []
        self.claims: list[np.ndarray | None] = []
        self.numbers: list[int] = []
        arrays: dict[tuple[int, ...], tuple[int, np.ndarray]] = {}
        for labels in problem.labels:
            key = tuple(label.backend for label in labels)
            number, array = arrays.setdefault(key, (len(arrays), np.array(key)))
            self.numbers.append(number)
            self.backends.append(array)
            claimed = any(label.claim >= 0 for label in labels)
            self.claims.append(np.array([label.claim for label in labels]) if claimed else None)
        self.present = [frozenset(labels) for labels in arrays]
        self._values: dict[Hashable, ValueTables] = {}
        self._meetings: dict[Hashable, np.ndarray] = {}
        self._ties: dict[Hashable, Table] = {}

    def same(self, first: int, second: int) -> BoolTable:
        """Which labels of two atoms have one backend."""
        return self.backends[first][:, None] == self.backends[second][None, :]

    def in_one_claim(self, first: int, second: int) -> BoolTable | None:
        """Which labels of two atoms are of one match; ``None`` if that cannot be."""
        claims, others = self.claims[first], self.claims[second]
        if claims is None or others is None:
            return None
        return (claims[:, None] == others[None, :]) & (claims >= 0)[:, None]

    def of(self, value: Value, exact: bool) -> ValueTables:
        """What a value costs.

        Args:
            exact: whether a state is to say what is written and what crosses.
        """
        if self.claims[value.producer] is not None and any(self.claims[use.atom] is not None for use in value.uses):
            return self._made(value, exact)
        uses = tuple((self.numbers[use.atom], use.reads, use.fused) for use in value.uses)
        key = (self.numbers[value.producer], value.writes, value.crossings, uses, value.output, exact)
        if key not in self._values:
            self._values[key] = self._made(value, exact)
        return self._values[key]

    def _made(self, value: Value, exact: bool) -> ValueTables:
        own = self.backends[value.producer]
        writes, crossings = np.array(value.writes)[own], np.array(value.crossings)[own]
        fused = tuple(self._fused(value, use.atom, use.fused) for use in value.uses)
        certain = np.full(len(own), value.output)
        for table in fused:
            certain |= ~table.any(axis=1)
        uncertain = np.where(certain, 0.0, writes)
        sharers = np.zeros(len(self.entry))
        for use in value.uses:
            sharers[list(self.present[self.numbers[use.atom]])] += 1
        alone = len(value.uses) == 1 or not (uncertain.any() or (crossings.any() and sharers.max() > 1))
        charged = []
        for use, table in zip(value.uses, fused, strict=True):
            readers = self.backends[use.atom]
            cost = np.array(use.reads)[readers][None, :]
            if alone or not exact:
                cost = cost + uncertain[:, None] / len(value.uses)
            cost = np.where(table, 0.0, cost)
            if alone or not exact:
                cost = cost + crossings[:, readers] / sharers[readers]
            charged.append(cost)
        return ValueTables(np.where(certain, writes, 0.0), uncertain, crossings, fused, tuple(charged), alone)

    def _fused(self, value: Value, reader: int, mask: int) -> BoolTable:
        producer = value.producer
        kept = np.array([bool(mask >> slot & 1) for slot in range(len(self.entry))])
        fused = self.same(producer, reader) & kept[self.backends[producer]][:, None]
        together = self.in_one_claim(producer, reader)
        return fused if together is None else fused | together

    def meeting(self, first: int | None, others: Sequence[int], colours: tuple[int, ...]) -> np.ndarray:
        """The common colour of an atom or helper (``None``) and other atoms, by their states; the last is none."""
        key = (first if first is None else self.numbers[first], *(self.numbers[atom] for atom in others), colours)
        if key not in self._meetings:
            last = len(colours)
            colour = np.arange(last + 1) if first is None else self.colours(first, colours)
            for atom in others:
                colour = np.where(colour[..., None] == self.colours(atom, colours), colour[..., None], last)
            self._meetings[key] = colour
        return self._meetings[key]

    def tie(self, first: int | None, second: int, colours: tuple[int, ...]) -> Table:
        """What makes a helper have the common colour of two others."""
        key = (first if first is None else self.numbers[first], self.numbers[second], colours)
        if key not in self._ties:
            meeting = self.meeting(first, (second,), colours)
            self._ties[key] = np.where(meeting[..., None] == np.arange(len(colours) + 1), 0.0, np.inf)
        return self._ties[key]

    def colours(self, atom: int, colours: Sequence[int]) -> np.ndarray:
        """Per label of an atom, the position of its backend among some; one past the last for others."""
        number = {slot: index for index, slot in enumerate(colours)}
        return np.array([number.get(int(slot), len(colours)) for slot in self.backends[atom]])
