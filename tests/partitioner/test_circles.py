"""Circles of components: those that networkx finds."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from mixbackend.partitioner.regions import circles_of


@pytest.mark.sampled(100)
@pytest.mark.parametrize("seed", range(300))
def test_circles_are_the_strongly_connected_components(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 12)
    pairs = [(draw.randrange(count), draw.randrange(count)) for _ in range(draw.randint(0, 30))]
    edges = [(first, second) for first, second in pairs if first != second]
    expected = [circle for circle in nx.strongly_connected_components(nx.DiGraph(edges)) if len(circle) > 1]
    assert sorted(map(sorted, circles_of(edges))) == sorted(map(sorted, expected))


def test_a_long_circle_needs_no_deep_stack() -> None:
    count = 50_000
    (circle,) = circles_of((place, (place + 1) % count) for place in range(count))
    assert len(circle) == count
