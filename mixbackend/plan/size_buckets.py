"""Size buckets: which ranges of sizes of one graph have plans of their own, and how a call tells its range.

Place: between the search (``plan.regime_search``) and the executable, which has a program for each bucket.
Input: a described graph and its plan. Output: ``Ladder``; a function that reads the deciding quantity off a call.
Invariants: no guard is added: sizes are read where the graph's own inputs show them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import sympy
import torch.fx

from mixbackend.contracts import OpGraph, Plan, SymbolicSize, TensorMeta
from mixbackend.plan.layout_choice import LaidOutGraph
from mixbackend.plan.planner import Planner
from mixbackend.plan.regime_search import Ladder, find_ladder


def ladder_of(layout: LaidOutGraph, plan: Plan, planner: Planner) -> Ladder | None:
    """The buckets of a described graph, by estimates; ``None`` where no number of a call could decide."""
    graph = layout.graph
    if not graph.dynamic:
        return None
    places = _places(layout.module)
    return find_ladder(
        graph,
        plan,
        lambda symbol: _source(graph, places, symbol) is not None,
        planner.place,
        planner.reprice,
    )


def size_reader(
    graph_module: torch.fx.GraphModule, graph: OpGraph, symbols: Sequence[sympy.Symbol]
) -> Callable[[Sequence[Any]], int]:
    """How to read the product of some symbols off the inputs of a call.

    Raises:
        ValueError: no input shows one of the symbols.
    """
    places = _places(graph_module)
    sources = [_source(graph, places, symbol) for symbol in symbols]
    if any(source is None for source in sources):
        raise ValueError(f"no input shows one of {', '.join(map(str, symbols))}")
    found = [source for source in sources if source is not None]
    numbers = [place for place, dimension in found if dimension is None]
    if len(found) == len(numbers) == 1:
        return itemgetter(*numbers)
    if len(found) == len(numbers) == 2:
        first, second = numbers
        return lambda arguments: arguments[first] * arguments[second]
    return lambda arguments: math.prod(
        [arguments[place] if dimension is None else arguments[place].shape[dimension] for place, dimension in found]
    )


_Source = tuple[int, int | None]
"""Position of an input, and the dimension of it; ``None`` if it is a number."""


def _places(graph_module: torch.fx.GraphModule) -> dict[str, int]:
    """Positions of the graph's inputs in a call, by name."""
    return {node.name: place for place, node in enumerate(graph_module.graph.find_nodes(op="placeholder"))}


def _source(graph: OpGraph, places: Mapping[str, int], symbol: sympy.Symbol) -> _Source | None:
    """Where a symbol can be read: a number is quicker than a tensor's size."""
    metas = [(places[item.name], item.meta) for item in graph.inputs if item.name in places]
    for place, meta in metas:
        if isinstance(meta, SymbolicSize) and meta.expression == symbol:
            return place, None
    for place, meta in metas:
        for dimension, size in enumerate(meta.shape if isinstance(meta, TensorMeta) else ()):
            if isinstance(size, SymbolicSize) and size.expression == symbol:
                return place, dimension
    return None
