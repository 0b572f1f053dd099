"""The lower bound that the labelling minimises, as factors for variable elimination.

Place: between the problem and the search. Input: a ``Problem``. Output: ``BoundModel``, variables and factors with a
least sum that is at most the true energy of every legal plan.

- Ops and graph inputs: exact, one table per atom.
- Reads, writes: a reader on the producer's backend that could fuse is taken to fuse (a plan that cuts there costs
  more), unless a detour between the two leaves the backend: then they cannot share a region. A write is charged to the
  producer where some reader can never fuse or the graph returns the value, which is exact; else it is split among the
  readers. For values named in ``exact_values`` a state variable of their own says whether they are written and to
  which backends they cross, which is exact again.
- Crossings: paid once per backend, so split among the readers that can be on that backend.
- Entries: regions are convex, so links that are not bypassed connect each of them. Their number is at least that of the
  components of equal backend over such links, n - m + c: atoms, less links inside components, plus independent cycles
  inside components. Each atom pays an entry, each link of equal backends refunds one, and each short independent cycle
  that lies on one backend pays one again. In a bundle of parallel paths each path on one backend pays one, and all of
  them together get one back: if one path leaves the backend, its ends are in two regions and the other paths are cut.
- Claims: atoms of a match agree through infinite pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from mixbackend.partitioner.bound_tables import Tables, ValueTables
from mixbackend.partitioner.cycles import Shape
from mixbackend.partitioner.elimination import Factor, Table
from mixbackend.partitioner.problem import Problem, Use, Value


@dataclass(frozen=True, eq=False)
class BoundModel:
    """Variables (the atoms first, then helpers) and factors.

    Attributes:
        sizes: states per variable.
        factors: the terms.
        atoms: how many of the variables are atoms.
    """

    sizes: tuple[int, ...]
    factors: tuple[Factor, ...]
    atoms: int


def bound_model(
    problem: Problem,
    shape: Shape,
    exact_values: frozenset[int] = frozenset(),
    rings: bool = True,
    known: Tables | None = None,
) -> BoundModel:
    """The lower bound of a problem as factors.

    Args:
        shape: detours and cycles of its links.
        exact_values: values that get a state variable.
        rings: whether to add the terms on cycles and detours; without them the bound is looser and the tables smaller.
        known: tables of other models of this problem.
    """
    return _Builder(shape, exact_values, rings, known or Tables(problem)).build()


def discounted(problem: Problem, backends: Sequence[int]) -> Problem:
    """The problem with everything free that a region of these backends could re-price (``Backend.region_cost``)."""
    free = set(backends)

    def keep(costs: Sequence[float]) -> tuple[float, ...]:
        return tuple(0.0 if slot in free else cost for slot, cost in enumerate(costs))

    values = tuple(
        replace(
            value,
            writes=keep(value.writes),
            crossings=tuple(keep(row) for row in value.crossings),
            uses=tuple(use._replace(reads=keep(use.reads)) for use in value.uses),
        )
        for value in problem.values
    )
    costs = tuple(
        tuple(0.0 if label.backend in free else cost for label, cost in zip(labels, prices, strict=True))
        for labels, prices in zip(problem.labels, problem.costs, strict=True)
    )
    return replace(problem, values=values, costs=costs, entry=keep(problem.entry))


def on_one_pool(problem: Problem) -> Iterator[Problem]:
    """For every pool that saves switches and can run everything: the problem as plans that stay on it see it."""
    entry = tuple(whole - switch for whole, switch in zip(problem.entry, problem.switch, strict=True))
    for pool in sorted(problem.whole_pools):
        others = frozenset(slot for slot, name in enumerate(problem.pools) if name != pool)
        yield replace(without_backends(problem, others), entry=entry)


def without_backends(problem: Problem, slots: frozenset[int]) -> Problem:
    """The problem as plans without some backends see it.

    Their labels stay, so that numbers keep their meaning, but cost more than any plan without them.
    """
    forbidding = 1.0 + sum(max(prices) for prices in problem.costs) + sum(problem.entry) * problem.size
    forbidding += sum(max(value.writes) + sum(max(use.reads) for use in value.uses) for value in problem.values)
    costs = tuple(
        tuple(forbidding if label.backend in slots else cost for label, cost in zip(labels, prices, strict=True))
        for labels, prices in zip(problem.labels, problem.costs, strict=True)
    )
    return replace(problem, costs=costs)


class _Builder:
    def __init__(self, shape: Shape, exact_values: frozenset[int], rings: bool, tables: Tables) -> None:
        self._shape = shape
        self._rings = rings
        self._tables = tables
        self._problem = tables.problem
        self._exact_values = exact_values
        self._entry = tables.entry
        self._backends = tables.backends
        self._sizes = [len(labels) for labels in self._problem.labels]
        self._unary = [
            np.array(costs) + self._entry[backends]
            for costs, backends in zip(self._problem.costs, self._backends, strict=True)
        ]
        self._pairs: dict[tuple[int, int], Table] = {}
        self._refunds: dict[tuple[int, int], Table] = {}
        self._others: list[Factor] = []

    def build(self) -> BoundModel:
        for first, second in self._problem.links:
            self._pairs[first, second] = self._link(first, second)
        for number, value in enumerate(self._problem.values):
            self._add_value(value, number in self._exact_values)
        for cycle in self._shape.cycles if self._rings else ():
            self._add_ring(cycle, self._entry)
        for paths in self._shape.bundles if self._rings else ():
            for path in paths:
                self._add_ring(path, self._entry)
            self._add_ring(tuple(sorted({atom for path in paths for atom in path})), -self._entry)
        factors = [Factor((atom,), table) for atom, table in enumerate(self._unary)]
        factors += [Factor(pair, table) for pair, table in self._pairs.items()]
        return BoundModel(tuple(self._sizes), tuple(factors + self._others), self._problem.size)

    def _sizes_of(self, first: int, second: int) -> tuple[int, int]:
        return self._sizes[first], self._sizes[second]

    def _link(self, first: int, second: int) -> Table:
        bypassed = (first, second) in self._shape.detours
        backends = (self._tables.numbers[first], self._tables.numbers[second])
        refund = np.zeros(self._sizes_of(first, second)) if bypassed else self._refunds.get(backends)
        if refund is None:
            refund = np.where(self._tables.same(first, second), -self._entry[self._backends[first]][:, None], 0.0)
            self._refunds[backends] = refund
        claims_first, claims_second = self._tables.claims[first], self._tables.claims[second]
        if claims_first is None or claims_second is None:
            return refund
        shared = np.intersect1d(claims_first, claims_second)
        shared = shared[shared >= 0]
        apart = claims_first[:, None] != claims_second[None, :]
        torn = apart & (np.isin(claims_first, shared)[:, None] | np.isin(claims_second, shared)[None, :])
        return np.where(torn, np.inf, refund)

    def _add_value(self, value: Value, exact: bool) -> None:
        producer = value.producer
        tables = self._tables.of(value, exact)
        exact = exact and not tables.alone
        self._unary[producer] = self._unary[producer] + tables.certain
        for use, charged in zip(value.uses, tables.charged, strict=True):
            pair = (producer, use.atom)
            self._pairs[pair] = self._pairs[pair] + charged
            if use.fused and self._rings and pair in self._shape.detours:
                share = np.zeros(len(self._entry)) if exact else self._shares(value, tables.uncertain)
                self._add_detour(pair, use, share + np.array(use.reads))
        if exact:
            self._add_state(value, tables)

    def _add_state(self, value: Value, tables: ValueTables) -> None:
        """A variable that says whether the value is written, and to which backends it crosses."""
        own, crossings = self._backends[value.producer], tables.crossings
        reachable = sorted({int(slot) for use in value.uses for slot in self._backends[use.atom]})
        charged = [slot for slot in reachable if crossings[:, slot].any()]
        most = min(len(charged), len(value.uses))
        sets = [frozenset(chosen) for count in range(most + 1) for chosen in combinations(charged, count)]
        states = [(False, frozenset[int]())] + [(True, chosen) for chosen in sets]
        helper = len(self._sizes)
        self._sizes.append(len(states))
        price = np.zeros((len(own), len(states)))
        for column, (written, chosen) in enumerate(states):
            price[:, column] = (tables.uncertain if written else 0.0) + sum(crossings[:, slot] for slot in chosen)
        self._others.append(Factor((value.producer, helper), price))
        for use, table in zip(value.uses, tables.fused, strict=True):
            readers = self._backends[use.atom]
            away = own[:, None] != readers[None, :]
            allowed = np.zeros((len(own), len(readers), len(states)))
            for column, (written, chosen) in enumerate(states):
                unpaid = np.array([slot in charged and slot not in chosen for slot in range(len(self._entry))])
                bad = away & unpaid[readers][None, :]
                if not written:
                    bad = bad | ~table
                allowed[:, :, column] = np.where(bad, np.inf, 0.0)
            self._others.append(Factor((value.producer, use.atom, helper), allowed))

    def _shares(self, value: Value, uncertain: Table) -> Table:
        """Per backend, the part of an uncertain write that one reader bears."""
        shares = np.full(len(self._entry), np.inf)
        np.minimum.at(shares, self._backends[value.producer], uncertain / len(value.uses))
        return np.where(np.isfinite(shares), shares, 0.0)

    def _add_detour(self, pair: tuple[int, int], use: Use, unfused: Table) -> None:
        """What is due if producer and reader have one backend but the path between them leaves it."""
        kept = np.array([bool(use.fused >> slot & 1) for slot in range(len(self._entry))])
        extra = np.where(kept, unfused, 0.0)
        if not extra.any():
            return
        same, together = self._tables.same(*pair), self._tables.in_one_claim(*pair)
        if together is not None:
            same = same & ~together
        self._pairs[pair] = self._pairs[pair] + np.where(same, extra[self._backends[pair[0]]][:, None], 0.0)
        self._add_ring(self._shape.detours[pair], -extra)

    def _add_ring(self, cycle: tuple[int, ...], dues: Table) -> None:
        """Seconds that are due if a whole ring of atoms is on one backend."""
        present = [self._tables.present[self._tables.numbers[atom]] for atom in cycle]
        colours = tuple(sorted(slot for slot in frozenset.intersection(*present) if dues[slot] != 0.0))
        if not colours:
            return
        atoms = [atom for atom, backends in zip(cycle, present, strict=True) if len(backends) > 1]
        due = np.append(dues[list(colours)], 0.0)
        if not atoms:
            self._unary[cycle[0]] = self._unary[cycle[0]] + due[0]
            return
        first: int | None = atoms[0]
        variable, rest = atoms[0], atoms[1:]
        while len(rest) > 2:
            helper = len(self._sizes)
            self._sizes.append(len(colours) + 1)
            self._others.append(Factor((variable, rest[0], helper), self._tables.tie(first, rest[0], colours)))
            first, variable, rest = None, helper, rest[1:]
        self._others.append(Factor((variable, *rest), due[self._tables.meeting(first, rest, colours)]))
