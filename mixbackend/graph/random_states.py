"""Random states: ops that draw no numbers run without the state of the generator that a checkpoint keeps for them.

Place: a pass of captured graphs (``passes``). Input and output: the fx graph, changed in place.
A checkpointed part is computed again in the backward. Torch wraps every op there that may draw random numbers, so that
both computations draw the same (``run_and_save_rng_state``, ``run_with_rng_state``, and their form for CUDA graphs).
Attention without dropout draws none. Unwrapped, it is an op like others: any backend may take it, and it no longer
divides what is around it.
Invariants: values and the generator's state are what they were. A saved state is still an output of the forward: it is
read around an op that computes nothing.
Non-goals: ops that draw numbers, which stay as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import OpTag
from mixbackend.contracts.describe_op import as_tuple, describe_op
from mixbackend.contracts.torch_compat import is_higher_order, is_operator, rerun_fake

aten = torch.ops.aten
_SAVING = "run_and_save_rng_state"

_Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An op, its arguments and its options."""

_WRAPPED: Mapping[str, Callable[[torch.fx.Node], _Call]] = {
    _SAVING: lambda node: (node.args[0], node.args[1:], dict(node.kwargs)),
    "run_with_rng_state": lambda node: (node.args[1], node.args[2:], dict(node.kwargs)),
    "graphsafe_run_with_rng_state": lambda node: (
        node.args[0],
        node.args[1:],
        {key: value for key, value in node.kwargs.items() if key != "rng_state"},
    ),
}
"""What an op is wrapped in, by name of the wrapper."""


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether an op is wrapped."""
    return any(_wrapper(node) for node in graph_module.graph.nodes)


def unwrap_what_draws_nothing(graph_module: torch.fx.GraphModule) -> int:
    """Write ops that draw no numbers without their wrappers.

    Returns:
        How many.
    """
    return sum(_unwrapped(node) for node in list(graph_module.graph.nodes) if _wrapper(node))


def _wrapper(node: torch.fx.Node) -> str:
    name = getattr(node.target, "__name__", "") if is_higher_order(node.target) else ""
    return name if name in _WRAPPED else ""


def _unwrapped(node: torch.fx.Node) -> bool:
    graph, name = node.graph, _wrapper(node)
    target, arguments, options = _WRAPPED[name](node)
    saves = name == _SAVING
    if not is_operator(target) or (saves and any(user.target is not operator.getitem for user in node.users)):
        return False
    with graph.inserting_before(node):
        plain = graph.call_function(target, arguments, options)
    plain.meta = _meta(plain, node)
    if describe_op(plain).tags & {OpTag.RANDOM, OpTag.MUTATES, OpTag.EFFECT}:
        graph.erase_node(plain)
        return False
    if saves:
        _save_apart(node, plain)
    else:
        node.replace_all_uses_with(plain)
        graph.erase_node(node)
    return True


def _meta(plain: torch.fx.Node, wrapped: torch.fx.Node) -> dict[str, Any]:
    """Of an op by itself: torch states no values of what it wraps, and names its source at what reads the results."""
    arguments, options = torch.fx.map_arg((plain.args, plain.kwargs), lambda node: node.meta["val"])
    known = [node.meta for node in (wrapped, *wrapped.users) if "stack_trace" in node.meta]
    like = next((node.meta["val"] for node in plain.all_input_nodes), None)
    return {**next(iter(known), {}), "val": rerun_fake(plain.target, arguments, options, like)}


def _save_apart(node: torch.fx.Node, plain: torch.fx.Node) -> None:
    """Let a node save the state alone, where another node takes it, and an op compute the results."""
    graph, value = node.graph, plain.meta["val"]
    for user in list(node.users):
        if user.args[1] == 1:
            user.replace_all_uses_with(plain)
            graph.erase_node(user)
    if not node.users:
        graph.erase_node(node)
        return
    device = next(item.device for item in as_tuple(value) if isinstance(item, torch.Tensor))
    node.args, node.kwargs = (aten.empty.memory_format, [0]), {"device": device}
    node.meta.pop("val", None)
