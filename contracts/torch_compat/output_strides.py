"""Strides of a graph's outputs after inductor's passes over it.

Place: a part of the door, used by ``inductor``; see ``contracts.torch_compat``. Input: a graph after the passes, and
the strides that its outputs had before. Output: the graph, changed in place.
Passes pad products for a GPU and cut the padding off again, which leaves gaps between rows; code that counts on an
output's strides reads its neighbours then.
Invariants: an output that lies as it did is not touched; values stay what they were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.node import map_arg

_CLONE = torch.ops.aten.clone.default
_DENSE = {"memory_format": torch.contiguous_format}


def output_strides(graph_module: torch.fx.GraphModule) -> list[tuple[Any, ...] | None]:
    """Of the tensors among a graph's outputs."""
    (output,) = graph_module.graph.find_nodes(op="output")
    return [_strides(node) for node in output.args[0]]


def _strides(node: Any) -> tuple[Any, ...] | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return tuple(value.stride()) if isinstance(value, torch.Tensor) else None


def keep_output_strides(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    expected: Sequence[tuple[Any, ...] | None],
    exact: Sequence[int],
    old: Collection[torch.fx.Node] = (),
) -> None:
    """Copy outputs that were given gaps back to where they must lie.

    Args:
        graph_module: after the passes.
        inputs: fake values of its placeholders.
        expected: strides that its outputs had before.
        exact: positions of the outputs for which they count.
        old: nodes that the graph had before. Only views keep gaps: where these, and what they are views of, are all
            old, values need not be worked out anew to know that nothing has moved.
    """
    from torch._inductor.compile_fx import fake_tensor_prop

    (output,) = graph_module.graph.find_nodes(op="output")
    results = list(output.args[0])
    if all(node in old for place in exact for node in _sources(results[place])):
        return
    fake_tensor_prop(graph_module, list(inputs))
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for place in exact:
        strides, actual = expected[place], _strides(results[place])
        static = all(isinstance(step, int) for step in (*(strides or ()), *(actual or ())))
        if strides is not None and static and actual != strides:
            results[place] = _restored(results[place], strides, output, copies)
    output.args = (type(output.args[0])(results),)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def _restored(
    node: torch.fx.Node,
    strides: tuple[Any, ...],
    output: torch.fx.Node,
    copies: dict[torch.fx.Node, torch.fx.Node],
) -> torch.fx.Node:
    """The node with other strides: a row-major copy of it, or its view of one of what it is a view of.

    Args:
        copies: row-major copies that are in the graph already.
    """
    sources = _sources(node)
    for source in sorted(sources, key=lambda item: item not in copies):
        views = list(reversed(sources[: sources.index(source)]))
        value = _evaluated(_CLONE, (source,), _DENSE)
        for view in views:
            value = _evaluated(view.target, (value, *view.args[1:]), view.kwargs)
        if tuple(value.stride()) == strides:
            return _viewed(source, views, output, copies)
    return node


def _sources(node: Any) -> list[torch.fx.Node]:
    """The node, what it is a view of, and so on; without the graph's inputs, and nothing for what is no node."""
    found = []
    while isinstance(node, torch.fx.Node) and node.op == "call_function":
        found.append(node)
        if not node.args or not _is_view(node.target):
            break
        node = node.args[0]
    return found


def _is_view(target: Any) -> bool:
    """Whether the first result shares its storage with the first argument, unwritten."""
    schema = getattr(target, "_schema", None)
    if schema is None or len(schema.returns) != 1 or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write and schema.returns[0].alias_info is not None


def _viewed(
    source: torch.fx.Node,
    views: Sequence[torch.fx.Node],
    output: torch.fx.Node,
    copies: dict[torch.fx.Node, torch.fx.Node],
) -> torch.fx.Node:
    """The views, the innermost first, of a copy."""
    graph = output.graph
    with graph.inserting_before(output):
        if source not in copies:
            copies[source] = _call(graph, _CLONE, (source,), _DENSE)
        made = copies[source]
        for view in views:
            made = _call(graph, view.target, (made, *view.args[1:]), view.kwargs)
    return made


def _call(graph: torch.fx.Graph, target: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> torch.fx.Node:
    node = graph.call_function(target, arguments, dict(keywords))
    node.meta["val"] = _evaluated(target, arguments, keywords)
    return node


def _evaluated(target: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """What an operator gives for fake values, and for those of nodes."""
    given, named = map_arg((arguments, dict(keywords)), lambda node: node.meta["val"])
    return target(*given, **named)
