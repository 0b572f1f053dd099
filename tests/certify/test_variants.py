"""Other inputs of a call: they are laid out as the given ones."""

from __future__ import annotations

import torch

from mixbackend.certify.variants import other_values
from mixbackend.graph.trace import trace_region


def test_values_that_are_spread_stay_so() -> None:
    spread = torch.arange(4.0)[:, None].expand(4, 3)
    gapped = torch.arange(24.0).reshape(4, 6)[:, ::2]
    region = trace_region(lambda x, y: x < y, [spread, gapped])
    given = other_values(region, [spread, gapped])
    assert given is not None
    assert [value.stride() for value in given] == [(1, 0), (6, 2)]
    assert [torch.equal(mine, other) for mine, other in zip(given, (spread, gapped), strict=True)] == [False, False]
    assert given[0][:, 0].tolist() == given[0][:, 2].tolist()
    assert spread[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0], "the given ones are only read"


def test_values_that_are_all_one_cannot_be_others() -> None:
    spread = torch.ones(1, 1).expand(4, 3)
    region = trace_region(lambda x: x + 1, [spread])
    assert other_values(region, [spread]) is None
