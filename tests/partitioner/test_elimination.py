"""Variable elimination by itself: limits that stop an order, and tables that stay what they were."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest

from mixbackend.partitioner.elimination import Factor, eliminate, energy_of, min_degree_order, order_within

pytestmark = pytest.mark.smoke


def _sum_of_tables(seed: int) -> tuple[list[int], list[Factor]]:
    draw, numbers = Random(seed), np.random.default_rng(seed)
    sizes = [draw.randint(1, 3) for _ in range(6)]
    scopes = [tuple(draw.sample(range(6), draw.randint(1, 3))) for _ in range(9)]
    return sizes, [Factor(scope, numbers.integers(0, 9, [sizes[item] for item in scope]) / 4) for scope in scopes]


@pytest.mark.parametrize("seed", range(40))
def test_an_order_is_found_if_and_only_if_its_tables_are_within_the_limits(seed: int) -> None:
    sizes, factors = _sum_of_tables(seed)
    scopes = [factor.scope for factor in factors]
    order = min_degree_order(sizes, scopes)
    assert order_within(sizes, scopes, order.largest, order.total) == order
    assert order_within(sizes, scopes, order.largest - 1, order.total) is None
    assert order_within(sizes, scopes, order.largest, order.total - 1) is None


@pytest.mark.parametrize("seed", range(40))
def test_the_least_sum_is_found_and_no_table_is_written_to(seed: int) -> None:
    sizes, factors = _sum_of_tables(seed)
    before = [factor.table.copy() for factor in factors]
    order = min_degree_order(sizes, (factor.scope for factor in factors))
    solution = eliminate(sizes, factors, order, order.largest)
    least = min(energy_of(factors, states) for states in product(*map(range, sizes)))
    assert (solution.bound, energy_of(factors, solution.states)) == (least, least)
    for factor, table in zip(factors, before, strict=True):
        np.testing.assert_array_equal(factor.table, table)
