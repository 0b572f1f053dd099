"""Offsets of outputs: where in its storage a captured graph's output begins, as it was traced.

Place: around what is compiled of a captured graph, below ``capture``. Input: the graph, before it is compiled.
Output: the compiled function; its outputs begin where eager's do.
AOTAutograd makes an output that shares memory with an input, or with another output, once more from that one, with the
sizes, strides and offset of what the graph returned. Where no size is symbolic it repeats the view instead.
Invariants: values are those that were returned; graphs without such outputs have no cost.
Non-goals: strides, see ``execute.strides``; what is kept for a backward, which the user does not look at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from mixbackend.contracts.torch_compat import size_expression

Run = Callable[[list[Any]], Sequence[Any]]
Place = tuple[int, int | None]
"""Of an argument, and a dimension of it; no dimension for a number."""


def traced_offsets(module: torch.fx.GraphModule, outputs: int | None = None) -> Callable[[Run], Run]:
    """What lays the outputs of a captured graph where they were traced, to be put around the graph's function.

    Args:
        outputs: so many of the graph's outputs are looked at, the first ones; ``None`` for all.
    """
    places = shown(module)
    offsets = offsets_of(module, outputs, places)
    symbols = sorted(frozenset[sympy.Symbol]().union(*(item.free_symbols for item in offsets.values())), key=str)

    @functools.lru_cache(maxsize=64)
    def at(values: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        known = dict(zip(symbols, map(sympy.Integer, values), strict=True))
        return tuple((place, int(item.xreplace(known))) for place, item in offsets.items())

    def around(run: Run) -> Run:
        def laid(arguments: list[Any]) -> Sequence[Any]:
            wanted = at(tuple(_read(arguments, places[symbol]) for symbol in symbols))
            results = list(run(arguments))
            for place, offset in wanted:
                results[place] = beginning_at(results[place], offset)
            return results

        return laid if offsets else run

    return around


def offsets_of(
    module: torch.fx.GraphModule, outputs: int | None, places: Mapping[sympy.Symbol, Place]
) -> dict[int, sympy.Expr]:
    """Offsets that are not 0, by place of the output, where some size is symbolic and the arguments show them."""
    if not places:
        return {}
    (output,) = module.graph.find_nodes(op="output")
    found: dict[int, sympy.Expr] = {}
    for place, node in enumerate(output.args[0][:outputs]):
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            offset = size_expression(value.storage_offset())
            if offset != 0 and all(symbol in places for symbol in offset.free_symbols):
                found[place] = offset
    return found


def shown(module: torch.fx.GraphModule) -> dict[sympy.Symbol, Place]:
    """Where the arguments show the value of each symbol."""
    found: dict[sympy.Symbol, Place] = {}
    for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for dimension, size in sizes:
            if isinstance(size, torch.SymInt):
                found.setdefault(size_expression(size), (place, dimension))
    return {symbol: place for symbol, place in found.items() if symbol.is_Symbol}


def beginning_at(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """The tensor, or a copy of it that begins so many elements into its storage."""
    if tensor.storage_offset() == offset or not tensor.numel():
        return tensor
    size, stride = tensor.size(), tensor.stride()
    extent = 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    result = own = tensor.new_empty(offset + extent).as_strided(size, stride, offset)
    for dimension, step in enumerate(stride):
        if step == 0:
            own, tensor = own.narrow(dimension, 0, 1), tensor.narrow(dimension, 0, 1)
    own.copy_(tensor)
    return result


def _read(arguments: Sequence[Any], place: Place) -> int:
    index, dimension = place
    return int(arguments[index] if dimension is None else arguments[index].shape[dimension])
