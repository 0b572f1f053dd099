"""Calling a graph more often than the user asked, as if it had not been.

Place: below ``comparison_processor`` and ``comparison_gpu``.
Invariants: after a context of ``put_back``, random numbers go on where they were, and inputs that graphs write into
hold what they held. What cannot be put back is told by ``may_repeat``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from mixbackend.contracts import OpGraph, OpTag

_ONCE = frozenset({OpTag.COLLECTIVE, OpTag.EFFECT})
"""Ops that may not run more often than the user's code says, whatever is put back afterwards."""


def may_repeat(graph: OpGraph, placeholders: Sequence[str]) -> bool:
    """Whether calls of a graph can be made undone.

    Args:
        placeholders: names of the captured graph's inputs: only what is written into these can be put back.
    """
    if any(_ONCE & node.tags for node in graph.nodes):
        return False
    return set(written_inputs(graph)) <= set(placeholders)


@contextlib.contextmanager
def put_back(
    graphs: Sequence[OpGraph], placeholders: Sequence[str], values: Sequence[Any], gpus: Sequence[int] = ()
) -> Iterator[None]:
    """While graphs run that write into these values and draw random numbers; what they changed is put back at the end.

    Args:
        placeholders: names of the values.
        gpus: numbers of those whose random states are put back beside the processor's.
    """
    names = {name for graph in graphs for name in written_inputs(graph)}
    written = [values[place] for place, name in enumerate(placeholders) if name in names]
    before = [value.detach().clone() for value in written]
    try:
        with torch.random.fork_rng(list(gpus)):
            yield
    finally:
        with torch.no_grad():
            for value, kept in zip(written, before, strict=True):
                value.copy_(kept)


def written_inputs(graph: OpGraph) -> tuple[str, ...]:
    """Names of the graph's inputs that its ops write into, through views, too."""
    root = {item.name: item.name for item in graph.inputs}
    inputs = frozenset(root)
    found: dict[str, None] = {}
    for node in graph.nodes:
        alias = node.aliased()
        if alias is None:
            continue
        root[node.name] = root.get(alias, alias)
        if OpTag.MUTATES in node.tags:
            found[root[node.name]] = None
    return tuple(name for name in found if name in inputs)
