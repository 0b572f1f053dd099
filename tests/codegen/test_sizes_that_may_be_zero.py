"""A size that is made of others may be 0, and so may a divisor: of positions in a tensor without elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as functional

import mixbackend

FUNCTIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "rolled": lambda x, n: torch.arange(n % 5).roll(2),
    "beside others": lambda x, n: torch.cat([torch.arange(n % 5).roll(2), torch.arange(40)]),
    "padded": lambda x, n: functional.pad((x.new_ones(3, n % 5) * 2).roll(1, 1), (40, 41, 1, 1)),
    "summed": lambda x, n: torch.arange(n % 5).repeat(3).roll(1).sum() + x,
    "turned and padded": lambda x, n: functional.pad(x.new_ones(3, n % 5, 3).cumsum(1).mT.reshape(-1), (20, 21)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_size_gives_eagers_result(name: str) -> None:
    function = FUNCTIONS[name]
    backend = mixbackend.auto({"backends": ["codegen", "eager"], "on_failure": "raise", "select": "off"})
    compiled, x = torch.compile(function, backend=backend, dynamic=True), torch.randn(2)
    for number in (3, 4, 5, 7, 10):
        torch.testing.assert_close(compiled(x, number), function(x, number))
    (graph, *_) = backend.report().graphs
    assert {region.backend for region in graph.plan.regions} == {"codegen"}
