"""The search for labels: exact where tables fit, otherwise bounded and improved.

Place: after pricing. Input: a ``Problem``. Output: ``Labelling``: one label per atom and a lower bound on every plan.
Order of attempts: the whole bound by elimination; the same without the terms of cycles; mini-buckets under a cap and
expansion moves on top (``expansion``).
Invariants: deterministic; the bound holds for every legal plan whatever the attempt.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mixbackend.partitioner.bound import BoundModel, bound_model
from mixbackend.partitioner.bound_tables import Tables
from mixbackend.partitioner.cycles import Shape, shape_of
from mixbackend.partitioner.elimination import Factor, Order, Table, eliminate, min_degree_order, order_within
from mixbackend.partitioner.expansion import expand
from mixbackend.partitioner.problem import Problem

TABLE_BYTES = 256 << 20
"""No single table may be larger."""
TABLE_ENTRIES = 60_000_000
"""All tables of one elimination together: about a second of additions."""
BUCKET_ENTRIES = 1 << 14
"""Entries of one mini-bucket in the fallback."""


@dataclass(frozen=True)
class Labelling:
    """What the search found.

    Attributes:
        labels: per atom, the position of its label.
        bound: seconds; no legal plan costs less.
        width: of the elimination, 0 if it was not exact.
        search: ``exact`` or ``expansion``.
    """

    labels: tuple[int, ...]
    bound: float
    width: int
    search: str


def find_labels(problem: Problem) -> Labelling:
    """Least labelling of the lower bound."""
    return Labeller(problem).find()


class Orders:
    """Orders of elimination, by what variables and scopes a model has: at other costs a graph mostly has the same."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Order | None] = {}

    def affordable(self, model: BoundModel) -> Order | None:
        """The order of a model's variables, ``None`` if its tables do not fit the memory and time we allow."""
        scopes = tuple(factor.scope for factor in model.factors)
        key = (model.sizes, scopes)
        if key not in self._known:
            self._known[key] = order_within(model.sizes, scopes, TABLE_BYTES // 8, TABLE_ENTRIES)
        return self._known[key]


class Labeller:
    """Finds the labels of one problem, again and again with other values exact; what these do not change is kept."""

    def __init__(self, problem: Problem, orders: Orders | None = None) -> None:
        self._problem = problem
        self._orders = orders or Orders()
        self._shape = shape_of(problem.size, problem.links)
        self._tables = Tables(problem)
        self._known: dict[tuple[frozenset[int], bool], Labelling | None] = {}

    def find(self, exact_values: frozenset[int] = frozenset()) -> Labelling:
        """Least labelling of the lower bound, with a state for each of these values if that is affordable."""
        exact = self._attempt(exact_values, rings=True) or self._attempt(frozenset(), rings=True)
        found = exact or self._attempt(frozenset(), rings=False)
        assert found is not None, "without rings the search falls back to what is always affordable"
        return found

    def _attempt(self, exact_values: frozenset[int], rings: bool) -> Labelling | None:
        key = (exact_values, rings)
        if key not in self._known:
            self._known[key] = self._labelling(exact_values, rings)
        return self._known[key]

    def _labelling(self, exact_values: frozenset[int], rings: bool) -> Labelling | None:
        """``None`` if the tables of all rings are not affordable."""
        model = bound_model(self._problem, self._shape, exact_values, rings, self._tables)
        order = self._orders.affordable(model)
        if order is not None:
            solution = eliminate(model.sizes, model.factors, order, order.largest)
            return Labelling(solution.states[: self._problem.size], solution.bound, order.width, "exact")
        return None if rings else _approximate(self._problem, model)


def _approximate(problem: Problem, model: BoundModel) -> Labelling:
    order = min_degree_order(model.sizes, (factor.scope for factor in model.factors))
    solution = eliminate(model.sizes, model.factors, order, BUCKET_ENTRIES)
    starts = [solution.states[: problem.size], plain_labels(problem)]
    labels = expand(model, next((start for start in starts if whole(problem, start)), starts[0]))
    return Labelling(labels, solution.bound, 0, "expansion")


def whole(problem: Problem, labels: Sequence[int]) -> bool:
    """Whether every chosen match is chosen by all its atoms."""
    chosen = [problem.labels[atom][label].claim for atom, label in enumerate(labels)]
    return all(claim < 0 or all(chosen[other] == claim for other in problem.atoms_of_claim[claim]) for claim in chosen)


def plain_labels(problem: Problem) -> tuple[int, ...]:
    """The cheapest label of every atom by itself, without matches where that is possible."""
    return tuple(
        min(range(len(labels)), key=lambda number: (labels[number].claim >= 0, costs[number]))
        for labels, costs in zip(problem.labels, problem.costs, strict=True)
    )


class Neighbourhood:
    """Searches again among few atoms while all others stay: repair after a refused region."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    @cached_property
    def _factors(self) -> tuple[list[Table], list[list[Factor]]]:
        """Per atom, its own table and its tables with neighbours."""
        model = bound_model(self._problem, Shape({}, (), ()), rings=False)
        unary: list[Table] = [factor.table for factor in model.factors if len(factor.scope) == 1]
        pairs: list[list[Factor]] = [[] for _ in unary]
        for factor in model.factors:
            if len(factor.scope) == 2:
                pairs[factor.scope[0]].append(factor)
                pairs[factor.scope[1]].append(factor)
        return unary, pairs

    def search(
        self, atoms: Sequence[int], labels: Sequence[int], banned: Mapping[int, Sequence[int]]
    ) -> tuple[int, ...] | None:
        """Best labels of some atoms given all others, without their banned labels; ``None`` if there are none."""
        unary, pairs = self._factors
        number = {atom: index for index, atom in enumerate(atoms)}
        factors: list[Factor] = []
        sizes: list[int] = []
        for atom in atoms:
            table = unary[atom].copy()
            table[list(banned.get(atom, ()))] = np.inf
            sizes.append(len(table))
            factors.append(Factor((number[atom],), table))
            for factor in pairs[atom]:
                first, second = factor.scope
                if first in number and second in number:
                    factors += [Factor((number[first], number[second]), factor.table)] if atom == first else []
                elif first in number:
                    factors.append(Factor((number[first],), factor.table[:, labels[second]]))
                else:
                    factors.append(Factor((number[second],), factor.table[labels[first], :]))
        order = min_degree_order(sizes, (factor.scope for factor in factors))
        solution = eliminate(sizes, factors, order, BUCKET_ENTRIES)
        return solution.states if np.isfinite(solution.bound) else None
