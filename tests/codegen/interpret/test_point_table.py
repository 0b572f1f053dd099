"""Points are numbered by the combinations of their indices, whether these lie close together or far apart."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from tiers import draws

from mixbackend.backends.codegen.interpret.table import numbered

NEAR = some.integers(-2, 3)
FAR = some.sampled_from([-(1 << 62), -(10**9), -1, 0, 1, 10**9, 1 << 62])
ROWS = some.integers(1, 3).flatmap(
    lambda width: some.lists(some.tuples(*[NEAR | FAR] * width), min_size=1, max_size=12)
)


@settings(derandomize=True, deadline=None, max_examples=draws(70, 200))
@given(ROWS)
def test_numbers_are_ranks_of_combinations_in_lexicographic_order(rows: list[tuple[int, ...]]) -> None:
    distinct = sorted(set(rows))
    numbers, count = numbered([torch.tensor(column) for column in zip(*rows, strict=True)])
    assert count == len(distinct)
    assert numbers.tolist() == [distinct.index(row) for row in rows]


def test_no_points_have_no_numbers() -> None:
    numbers, count = numbered([torch.empty(0, dtype=torch.int64)] * 2)
    assert (numbers.tolist(), count) == ([], 0)
