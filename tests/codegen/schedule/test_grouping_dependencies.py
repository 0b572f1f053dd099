"""Merging groups never makes a cycle, and no legal merge is refused as one: held against networkx."""

from __future__ import annotations

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws

from mixbackend.backends.codegen.schedule.dependencies import Dependencies


def quotient(sources, partition):
    graph = nx.DiGraph()
    graph.add_nodes_from(set(partition))
    edges = ((partition[source], partition[reader]) for reader, read in enumerate(sources) for source in read)
    graph.add_edges_from(edge for edge in edges if edge[0] != edge[1])
    return graph


@st.composite
def graphs_and_merges(draw):
    count = draw(st.integers(2, 14))
    sources = [
        sorted(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else [] for number in range(count)
    ]
    stage = st.integers(0, count - 1)
    return sources, draw(st.lists(st.tuples(stage, stage), max_size=20))


@settings(max_examples=draws(70, 200), deadline=None)
@given(graphs_and_merges())
def test_merges_against_networkx(case):
    sources, merges = case
    dependencies = Dependencies(sources)
    partition = list(range(len(sources)))
    for first, second in merges:
        one, other = dependencies.group(first), dependencies.group(second)
        assert (one == other) == (partition[first] == partition[second])
        if one == other:
            continue
        old, new = partition[second], partition[first]
        trial = [new if group == old else group for group in partition]
        is_legal = nx.is_directed_acyclic_graph(quotient(sources, trial))
        assert dependencies.makes_cycle(one, other) != is_legal
        if is_legal:
            partition = trial
            dependencies.merge(one, other)
