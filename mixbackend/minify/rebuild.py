"""Rebuild: the ops of a piece for other inputs.

Place: under ``shrink``. Input: a piece, inputs of other sizes or types, and what becomes of arguments that are no
tensors. Output: a piece with the same ops under the same names, so that patterns stay matched.
Numbers among the inputs, and all that is computed of them, are written into the ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat import (
    fake_tensor,
    fresh_fake_mode,
    graph_module_of,
    is_operator,
    rerun_fake,
    schema_arguments,
)
from mixbackend.minify.piece import Piece, whole

Change = Callable[[str, Any], Any]
"""Gets the name of an argument that is no tensor, and its value; gives the value that it has now."""


def rebuilt(piece: Piece, inputs: Sequence[Any], change: Change = lambda name, value: value) -> Piece:
    """The same ops for other inputs.

    Raises:
        Exception: torch refuses the inputs, or the graph has more than ops.
    """
    source, graph, mode = piece.region.graph_module, torch.fx.Graph(), fresh_fake_mode()
    made: dict[torch.fx.Node, Any] = {}
    given = iter(inputs)
    like: list[torch.Tensor] = []
    for node in source.graph.nodes:
        if node.op == "placeholder":
            value = next(given)
            made[node] = _placeholder(graph, node.name, value, mode) if isinstance(value, torch.Tensor) else value
        elif node.op == "call_function":
            made[node] = _op(graph, node, made, change, like)
        elif node.op == "output":
            graph.output(tuple(made[item] for item in node.args[0]))
        else:
            raise ValueError(f"{node.op} cannot be written anew")
        if isinstance(made.get(node), torch.fx.Node):
            like.append(made[node].meta["val"])
    values = {item.name: value for item, value in zip(piece.region.inputs, inputs, strict=True)}
    return whole(piece.region, graph_module_of(source, graph), piece.roles, values)


def _placeholder(graph: torch.fx.Graph, name: str, value: torch.Tensor, mode: Any) -> torch.fx.Node:
    node = graph.placeholder(name)
    node.meta["val"] = fake_tensor(mode, value.shape, value.stride(), value.dtype, value.device)
    return node


def _op(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
    made: Mapping[torch.fx.Node, Any],
    change: Change,
    like: Sequence[torch.Tensor],
) -> Any:
    """The node for its new arguments; a number where it computes one."""
    names = [argument.name for argument in schema_arguments(node.target)] if is_operator(node.target) else []
    named = [*names, *[""] * len(node.args)]
    args = [_changed(name, value, made, change) for name, value in zip(named, node.args, strict=False)]
    kwargs = {name: _changed(name, value, made, change) for name, value in node.kwargs.items()}
    fake_args, fake_kwargs = torch.fx.map_arg((tuple(args), kwargs), lambda item: item.meta["val"])
    if is_operator(node.target):
        result = rerun_fake(node.target, fake_args, fake_kwargs, like)
    else:
        result = node.target(*fake_args, **fake_kwargs)  # type: ignore[operator]
    if isinstance(result, (int, float)):
        return result
    new = graph.create_node("call_function", node.target, tuple(args), kwargs, name=node.name)
    if new.name != node.name:
        raise ValueError(f"{node.name} would be called {new.name}")
    new.meta = {**node.meta, "val": result}
    return new


def _changed(name: str, value: Any, made: Mapping[torch.fx.Node, Any], change: Change) -> Any:
    if isinstance(value, torch.fx.Node):
        return made[value]
    if isinstance(value, (tuple, list)) and any(isinstance(item, torch.fx.Node) for item in value):
        return [_changed(name, item, made, change) for item in value]
    return change(name, value)
