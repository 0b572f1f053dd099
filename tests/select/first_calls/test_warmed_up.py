"""``Mixture.warm_up``: calls that may be trying altogether, after which the fastest runs and nothing is tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch

X = torch.linspace(-1.0, 1.0, 64).reshape(8, 8)

pytestmark = pytest.mark.usefixtures("worth_comparing")


@torch.no_grad()
def test_a_mixture_that_is_warmed_up_runs_what_is_fastest(sleeper: Any, make_mixture: Any) -> None:
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    compiled = torch.compile(lambda x: (x.exp() + 1.0).relu(), backend=mixture, dynamic=False)
    assert mixture.warm_up(lambda: compiled(X))
    (graph,) = mixture.report().graphs
    assert {region.backend for region in graph.plan.regions} == {"quick"}


@torch.no_grad()
def test_a_warm_up_that_is_over_leaves_what_runs(sleeper: Any, make_mixture: Any) -> None:
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    compiled = torch.compile(lambda x: (x.exp() + 1.0).relu(), backend=mixture, dynamic=False)
    calls = list[int]()
    assert not mixture.warm_up(lambda: (calls.append(1), compiled(X)), longest_s=0.0)
    assert len(calls) == 1
    compiled(X)
    (graph,) = mixture.report().graphs
    assert {region.backend for region in graph.plan.regions} == {"slow"} and mixture.settled()


@torch.no_grad()
def test_of_two_warm_ups_the_last_one_stops_trying(sleeper: Any, make_mixture: Any) -> None:
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    compiled = torch.compile(lambda x: (x.exp() + 1.0).relu(), backend=mixture, dynamic=False)
    within = [0.0]

    def call() -> None:
        compiled(X)
        if within:
            mixture.warm_up(lambda: compiled(X), longest_s=within.pop())

    assert mixture.warm_up(call)
    (graph,) = mixture.report().graphs
    assert {region.backend for region in graph.plan.regions} == {"quick"} and mixture.settled()
