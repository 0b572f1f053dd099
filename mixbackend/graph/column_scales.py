"""Column scales: what scales each column of a quantised weight scales that column of the product instead.

Place: a pass of captured graphs (``passes``).
Input and output: the fx graph, changed in place.
``mm(x, weight.to(float32) * scale)``, where a weight of 8 bits has a scale for each column, or one for all, becomes
``mm(x, weight.to(type)) * scale``: so the product reads the weight as it is stored, and no scaled copy of it is made.
There may be transpositions, and a conversion of the scaled weight, on the way; ``addmm`` adds its bias after the scale.
Invariants: shapes and types as traced. A rounding for each weight becomes one for each sum. Sums of unscaled weights
overflow float16: they are made in float32 there.
Non-goals: scales of groups of rows, and zero points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat import is_fake
from mixbackend.graph.new_nodes import NodeWriter

aten = torch.ops.aten
_TURNS = frozenset({aten.t.default, aten.permute.default, aten.transpose.int})
_WIDE_RANGE = frozenset({torch.float32, torch.bfloat16})
_NARROW = frozenset({torch.int8, torch.uint8})


@dataclass(frozen=True)
class _Scaled:
    """A right matrix: ``weight`` of 8 bits, turned or not, times ``scale``."""

    weight: torch.fx.Node
    scale: torch.fx.Node
    turned: bool


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether there is a product with a scaled right matrix."""
    return any(_found(node) is not None for node in _products(graph_module))


def scale_results(graph_module: torch.fx.GraphModule) -> int:
    """Scale results in place of weights; returns of how many products."""
    found = [(node, scaled) for node in _products(graph_module) if (scaled := _found(node)) is not None]
    for node, scaled in found:
        _write(graph_module.graph, node, scaled)
    if found:
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()
    return len(found)


def sums_in(dtype: torch.dtype) -> torch.dtype:
    """The type of a product with weights of 8 bits that are not scaled yet, where its result has this type."""
    return dtype if dtype in _WIDE_RANGE else torch.float32


def _products(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    graph = graph_module.graph
    plain = graph.find_nodes(op="call_function", target=aten.mm.default)
    added = graph.find_nodes(op="call_function", target=aten.addmm.default)
    return [*plain, *(node for node in added if not node.kwargs)]


def _found(node: torch.fx.Node) -> _Scaled | None:
    current, turned = node.args[-1], False
    while isinstance(current, torch.fx.Node) and len(current.users) == 1:
        if current.target in _TURNS and _rank(current) == 2:
            turned = turned != _is_turned(current)
        elif current.target is not aten._to_copy.default or set(current.kwargs) != {"dtype"}:
            break
        current = current.args[0]
    if not isinstance(current, torch.fx.Node) or current.target is not aten.mul.Tensor or len(current.users) != 1:
        return None
    for made, scale in (current.args, current.args[::-1]):
        weight = _widened(made)
        if weight is not None and isinstance(scale, torch.fx.Node) and _is_of_columns(scale, current, turned):
            return _Scaled(weight, scale, turned)
    return None


def _widened(node: Any) -> torch.fx.Node | None:
    """The weight of 8 bits that a node is the conversion of, on a processor."""
    if not isinstance(node, torch.fx.Node) or node.target is not aten._to_copy.default or _rank(node) != 2:
        return None
    (source,) = node.all_input_nodes
    value, result = source.meta["val"], node.meta["val"]
    narrow = value.dtype in _NARROW and result.dtype.is_floating_point and value.device.type == "cpu"
    return source if narrow and value.device == result.device else None


def _is_of_columns(scale: torch.fx.Node, product: torch.fx.Node, turned: bool) -> bool:
    """Whether a factor is the same along the terms of a matrix: its rows, or its columns where it is turned later."""
    value, whole = scale.meta.get("val"), product.meta["val"]
    if not isinstance(value, torch.Tensor) or not is_fake(value) or value.dim() > 2 or whole.dim() != 2:
        return False
    if not value.dtype.is_floating_point or whole.dtype not in (*_WIDE_RANGE, torch.float16):
        return False
    sizes = (*(1 for _ in range(2 - value.dim())), *value.shape)
    return all(isinstance(size, int) for size in sizes) and sizes[1 if turned else 0] == 1


def _write(graph: torch.fx.Graph, node: torch.fx.Node, scaled: _Scaled) -> None:
    write = NodeWriter(graph, node)
    left = node.args[-2]
    assert isinstance(left, torch.fx.Node)
    dtype = node.meta["val"].dtype
    computed = sums_in(dtype)
    with graph.inserting_before(node):
        weight = write(aten.t.default, scaled.weight) if scaled.turned else scaled.weight
        sums = write(aten.mm.default, write.converted(left, computed), write.converted(weight, computed))
        scale = write(aten.reshape.default, write.converted(scaled.scale, torch.float32), [-1])
        result = write(aten.mul.Tensor, sums, scale)
        if node.target is aten.addmm.default:
            result = write(aten.add.Tensor, result, node.args[0])
        result = write.converted(result, dtype)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _rank(node: torch.fx.Node) -> int:
    return int(node.meta["val"].dim())


def _is_turned(node: torch.fx.Node) -> bool:
    """Whether a matrix changes its rows for its columns."""
    if node.target is aten.t.default:
        return True
    order: Any = node.args[1] if node.target is aten.permute.default else node.args[1:]
    first, second = order
    return bool(first % 2 == 1) if node.target is aten.permute.default else bool(first % 2 != second % 2)
