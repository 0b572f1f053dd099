"""Exact minimisation of a sum of small tables: variable elimination.

Place: the engine of the search. Input: variables with a number of states each, and factors (a scope of variables and a
table of seconds). Output: the least possible sum, or a lower bound of it, and an assignment.
Method: bucket elimination, min-sum (R. Dechter, "Bucket elimination: a unifying framework for reasoning", 1999): the
factors that mention a variable are added up and minimised over it, which leaves one factor on its neighbours. The order
is min-degree. Where one table would exceed a cap, the factors of that variable are minimised in several groups (mini-
buckets: R. Dechter and I. Rish, 2003): the sum is then a lower bound, and the assignment a good guess.
Invariants: deterministic; memory is computed before any table is made.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
CROWDED = 24
"""From so many neighbours on, a variable is ranked by their number alone."""


@dataclass(frozen=True, eq=False)
class Factor:
    """A term of the sum: a table with one axis per variable of its scope."""

    scope: tuple[int, ...]
    table: Table


@dataclass(frozen=True)
class Order:
    """An elimination order and what it would take.

    Attributes:
        variables: in order of elimination.
        width: largest number of other variables in one step.
        largest: entries of the largest table.
        total: entries of all tables.
    """

    variables: tuple[int, ...]
    width: int
    largest: int
    total: int


@dataclass(frozen=True)
class Solution:
    """Result of an elimination.

    Attributes:
        bound: the minimum, or a lower bound where a bucket had to be divided.
        states: one state per variable.
    """

    bound: float
    states: tuple[int, ...]


def min_degree_order(sizes: Sequence[int], scopes: Iterable[Sequence[int]]) -> Order:
    """Eliminate the variable with the smallest table, again and again; ties go to the smaller number."""
    order = order_within(sizes, scopes, math.inf, math.inf)
    assert order is not None, "everything is within infinity"
    return order


def order_within(
    sizes: Sequence[int], scopes: Iterable[Sequence[int]], most_at_once: float, most_in_all: float
) -> Order | None:
    """The same order, ``None`` as soon as one of its tables, or all together, have more entries than these."""
    near: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for variable in scope:
            near[variable].update(scope)
    for variable, others in enumerate(near):
        others.discard(variable)
    rank = [_rank(variable, near, sizes) for variable in range(len(sizes))]
    heap = [(cost, variable) for variable, cost in enumerate(rank)]
    heapq.heapify(heap)
    done = [False] * len(sizes)
    order: list[int] = []
    width, largest, total = 0, 0, 0
    while heap:
        cost, variable = heapq.heappop(heap)
        if done[variable] or cost != rank[variable]:
            continue
        done[variable] = True
        order.append(variable)
        others = near[variable]
        entries = sizes[variable]
        for other in others:
            entries *= sizes[other]
        width, largest, total = max(width, len(others)), max(largest, entries), total + entries
        if largest > most_at_once or total > most_in_all:
            return None
        for other in others:
            neighbours = near[other]
            neighbours.discard(variable)
            if len(others) > 1:
                neighbours |= others
                neighbours.discard(other)
            present = _rank(other, near, sizes)
            if present != rank[other]:
                rank[other] = present
                heapq.heappush(heap, (present, other))
    return Order(tuple(order), width, largest, total)


def _rank(variable: int, near: Sequence[set[int]], sizes: Sequence[int]) -> tuple[int, int]:
    others = near[variable]
    if len(others) > CROWDED:
        return (len(others), 0)
    entries = sizes[variable]
    for other in others:
        entries *= sizes[other]
    return (0, entries)


def eliminate(sizes: Sequence[int], factors: Iterable[Factor], order: Order, cap: int) -> Solution:
    """Minimise the sum of the factors.

    Args:
        sizes: number of states per variable.
        cap: most entries that one table may have.
    """
    position = [0] * len(sizes)
    for place, variable in enumerate(order.variables):
        position[variable] = place
    buckets: list[list[Factor]] = [[] for _ in sizes]
    constant = 0.0
    for factor in factors:
        if factor.scope:
            arranged = _arranged(factor, position)
            buckets[arranged.scope[0]].append(arranged)
        else:
            constant += float(factor.table)
    for variable in order.variables:
        groups = _groups(buckets[variable], sizes, position, cap)
        for scope, members in groups:
            message = _total(members, scope).min(axis=0)
            if len(scope) == 1:
                constant += float(message)
            else:
                buckets[scope[1]].append(Factor(scope[1:], message))
    states = [0] * len(sizes)
    for variable in reversed(order.variables):
        states[variable] = _best_state(variable, buckets[variable], states)
    return Solution(constant, tuple(states))


def _arranged(factor: Factor, position: Sequence[int]) -> Factor:
    """Axes in order of elimination, so that the next variable to go is always the first axis."""
    axes = sorted(range(len(factor.scope)), key=lambda axis: position[factor.scope[axis]])
    if axes == list(range(len(axes))):
        return factor
    return Factor(tuple(factor.scope[axis] for axis in axes), factor.table.transpose(axes))


def _groups(
    factors: Sequence[Factor], sizes: Sequence[int], position: Sequence[int], cap: int
) -> list[tuple[tuple[int, ...], list[Factor]]]:
    """All factors in one group if their joint table fits, else few groups that fit, filled in order."""
    groups: list[tuple[set[int], list[Factor]]] = []
    for factor in sorted(factors, key=lambda item: -len(item.scope)) if len(factors) > 2 else factors:
        for scope, members in groups:
            if _entries(scope.union(factor.scope), sizes) <= cap:
                scope.update(factor.scope)
                members.append(factor)
                break
        else:
            groups.append((set(factor.scope), [factor]))
    return [(tuple(sorted(scope, key=position.__getitem__)), members) for scope, members in groups]


def _entries(scope: Iterable[int], sizes: Sequence[int]) -> int:
    entries = 1
    for variable in scope:
        entries *= sizes[variable]
    return entries


def _total(factors: Sequence[Factor], scope: tuple[int, ...]) -> Table:
    if len(factors) == 1:
        return factors[0].table
    total: Table | None = None
    ours = False
    for factor in factors:
        table = factor.table
        if factor.scope != scope:
            inside = set(factor.scope)
            axes = iter(table.shape)
            table = table.reshape([next(axes) if variable in inside else 1 for variable in scope])
        if total is None:
            total = table
        elif ours and all(map(operator.ge, total.shape, table.shape)):
            # Large tables are added to where they lie: fresh memory costs more than the addition.
            total += table
        else:
            total, ours = total + table, True
    assert total is not None
    return total


def _best_state(variable: int, factors: Sequence[Factor], states: Sequence[int]) -> int:
    if not factors:
        return 0
    total: Table | None = None
    for factor in factors:
        place: tuple[slice | int, ...] = (slice(None), *[states[other] for other in factor.scope[1:]])
        row = factor.table[place]
        total = row if total is None else total + row
    assert total is not None
    return int(total.argmin())


def energy_of(factors: Iterable[Factor], states: Sequence[int]) -> float:
    """The sum of the factors for one assignment."""
    return float(sum(factor.table[tuple(states[variable] for variable in factor.scope)] for factor in factors))
