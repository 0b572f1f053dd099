"""Finished products: what is computed point by point of a product is computed before the product is stored.

Place: after ``split_loops``, for targets with the template ``product``.
Before and after::

    y = product(a, p, c)                          z = product(a, p, c), finished by maximum(result + other0, 0)
    z[i, j] = maximum(y[i, j] + r[i, j], 0)   ->

Invariants: nothing else reads the product. All else that is read lies in memory, in float32, and is read at a place
linear in rows and columns. A product moves down to what is computed of it, over no write into an input.
Non-goals: what is computed of several products, or across columns (norms): those have kernels of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import rewrite, walk
from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.scalar import Apply, Constant, Expr, Load, Local, is_element
from mixbackend.backends.codegen.ir.stages import (
    GraphOutput,
    Loop,
    Map,
    Operand,
    Result,
    Stage,
    StageGraph,
    Template,
    TensorType,
    destinations,
    given_strides,
    targets_of,
)
from mixbackend.backends.codegen.ir.templates import RESULT, is_packed_product, is_place, other
from mixbackend.backends.codegen.schedule.rewrite import loads_of, readers_of

MAXIMUM_OTHERS = 4
"""Matrices that are read beside a product: each has a pointer and four strides."""


def finish_products(graph: StageGraph) -> StageGraph:
    """Let products end with the maps that alone read them."""
    finisher = _Finisher(graph)
    stages: dict[int, Stage] = dict(enumerate(graph.stages))
    places: dict[str, int] = {}
    products: dict[str, Template] = {}
    for number, stage in enumerate(graph.stages):
        found = finisher.finished(stage, products)
        if found is not None:
            product, stages[number] = found
            del stages[places[product]], products[product]
        if targets_of(stage)[0] in finisher.written:
            # What reads an input may not move behind the stage that writes into it.
            products.clear()
        elif is_packed_product(stage):
            products[targets_of(stage)[0]], places[targets_of(stage)[0]] = stage, number
    kept = {name for stage in stages.values() for name in targets_of(stage)}
    gone = {name for stage in graph.stages for name in targets_of(stage)} - kept
    types = tuple((name, type_) for name, type_ in graph.types if name not in gone)
    return replace(graph, stages=tuple(stages[number] for number in sorted(stages)), types=types)


class _Finisher:
    """Says which map ends a product.

    Attributes:
        written: tensors that are written into inputs.
    """

    def __init__(self, graph: StageGraph) -> None:
        self.written = destinations(graph).keys()
        self._types = dict(graph.types)
        self._readers = readers_of(graph.stages)
        self._strides = given_strides(graph)
        self._leaving = {item.tensor for item in graph.outputs if isinstance(item, GraphOutput)}
        self._symbols = (index_symbol(f"f{number}") for number in itertools.count())

    def finished(self, stage: Stage, products: Mapping[str, Template]) -> tuple[str, Template] | None:
        """The product that ends with a stage, and what both become."""
        if not isinstance(stage, Map) or stage.apart or stage.target in self.written:
            return None
        loads = list(loads_of(stage))
        # Of several products the last one: what it is computed with is there then.
        mine = [name for name in products if self._ends(name, loads)]
        load = next((load for load in loads if mine and load.tensor == mine[-1]), None)
        if load is None or len(loads) > MAXIMUM_OTHERS + 1 or not is_plain(stage, self._types):
            return None
        product = products[load.tensor]
        (result,) = product.results
        places = places_of(result, load, stage)
        others = [item for item in loads if item is not load]
        if places is None:
            return None
        column = next((symbol for symbol, loop in places.items() if loop is result.loops[-1]), None)
        if not all(self._is_ready(item, stage.loops, column) for item in (*others, _written(stage))):
            return None
        return load.tensor, self._ended(product, stage, load, others, places)

    def _ends(self, name: str, loads: Sequence[Load]) -> bool:
        """Whether a product is read at one place, by one stage."""
        places = [load for load in loads if load.tensor == name]
        return len(places) == 1 and self._readers[name] == 1 and name not in self._leaving

    def _is_ready(self, load: Load, loops: tuple[Loop, ...], column: sympy.Symbol | None) -> bool:
        """Whether an element can be read, or written, where the product is: columns one after the other, if any."""
        strides = self._strides.get(load.tensor)
        if not is_place(load, loops) or strides is None or column is None:
            return is_place(load, loops)
        steps = (part.coeff(column) * stride for part, stride in zip(load.index, strides, strict=True))
        return sympy.expand(sympy.Add(*steps)) in (0, 1)

    def _ended(
        self, product: Template, stage: Map, load: Load, others: list[Load], places: Mapping[sympy.Symbol, Loop]
    ) -> Template:
        (result,) = product.results
        names: dict[Expr, Expr] = {item: Local(torch.float32, other(number)) for number, item in enumerate(others)}
        names[load] = Local(torch.float32, RESULT)
        finish = rewrite(stage.value, lambda node: names.get(node, node))
        at = {symbol: loop.index for symbol, loop in places.items()}
        index = tuple(at.get(loop.index, sympy.Integer(0)) for loop in stage.loops)
        origins = tuple(dict.fromkeys((*product.origins, *stage.origins)))
        ended = replace(result, target=stage.target, index=index)
        operands = (*product.operands, *(self._operand(item, result, places) for item in others))
        # A copy into other dimensions computes nothing.
        computed = None if isinstance(finish, Local) else finish
        return replace(product, operands=operands, results=(ended,), origins=origins, finish=computed)

    def _operand(self, load: Load, result: Result, places: Mapping[sympy.Symbol, Loop]) -> Operand:
        loops = tuple(Loop(next(self._symbols), loop.size) for loop in result.loops)
        mine = dict(zip((loop.index for loop in result.loops), (loop.index for loop in loops), strict=True))
        at = {symbol: mine[loop.index] for symbol, loop in places.items()}
        return Operand(loops, replace(load, index=tuple(part.xreplace(at) for part in load.index)))


def is_plain(stage: Map, types: Mapping[str, TensorType]) -> bool:
    """Whether everything is float32, computed of elements and constants alone."""
    nodes = list(walk(stage.value))
    stored = [types[node.tensor].dtype for node in nodes if isinstance(node, Load)]
    return all(isinstance(node, (Apply, Constant, Load)) and node.dtype == torch.float32 for node in nodes) and all(
        dtype == torch.float32 for dtype in (*stored, types[stage.target].dtype)
    )


def places_of(result: Result, load: Load, stage: Map) -> dict[sympy.Symbol, Loop] | None:
    """The product's loop for every loop of a map that reads each of its elements once; ``None`` if it does not."""
    if not is_element(load):
        return None
    loop_of = {loop.index: loop for loop in result.loops}
    sizes = {loop.index: loop.size for loop in stage.loops}
    places: dict[sympy.Symbol, Loop] = {}
    for written, read in zip(result.index, load.index, strict=True):
        loop = loop_of.get(written)
        if loop is None:
            return None
        if read == 0 and loop.size == 1:
            continue
        if sizes.get(read) != loop.size or read in places:
            return None
        places[read] = loop
    complete = all(loop.index in places or loop.size == 1 for loop in stage.loops)
    return places if complete else None


def _written(stage: Map) -> Load:
    """The place that a map writes, as if it were read."""
    return Load(torch.float32, stage.target, tuple(loop.index for loop in stage.loops))
