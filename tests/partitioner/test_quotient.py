"""Merging regions against networkx: what may merge, and that the quotient stays acyclic."""

from __future__ import annotations

import random

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioner_cases import random_case
from tiers import draws

from mixbackend.partitioner.energy import Placement
from mixbackend.partitioner.placement import make_problem
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.quotient import Quotient
from mixbackend.partitioner.step_clock import StepClock


def acyclic_when_merged(problem: Problem, regions: list[int], first: int, second: int) -> bool:
    merged = [first if region == second else region for region in regions]
    quotient = nx.DiGraph((merged[a], merged[b]) for a, b in problem.edges if merged[a] != merged[b])
    return nx.is_directed_acyclic_graph(quotient)


@settings(derandomize=True, deadline=None, max_examples=draws(21, 60))
@given(st.integers(0, 10_000), st.integers(2, 25))
def test_random_merges_agree_with_networkx(seed: int, most: int) -> None:
    problem = make_problem(*random_case(seed, most), (), frozenset(), {}, StepClock())
    start = Placement((0,) * problem.size, tuple(range(problem.size)))
    quotient, draw = Quotient(problem, start), random.Random(seed)
    for _ in range(2 * problem.size):
        if len(quotient.members) < 2:
            break
        first, second = draw.sample(sorted(quotient.members), 2)
        expected = acyclic_when_merged(problem, quotient.regions, first, second)
        assert quotient.may_merge(first, second) == expected
        if expected:
            quotient.merge(first, second)
    assert sorted(quotient.members) == sorted(set(quotient.regions))
