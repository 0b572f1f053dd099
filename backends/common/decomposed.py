"""Decomposed: what one op turns into on a decomposition level, as ops to be judged.

Place: called inside ``judge`` by backends that have no rule for an op but may have rules for all its pieces.
Input: an ``OpView`` and a level. Output: views of the resulting ops in execution order.
Invariants: the answer depends on the op's signature alone (operator, arguments, metas), never on its place in a graph,
and is remembered by it; the traced op has symbols of its own, so no guard is added.
Non-goals: ops with effects, random ops, ops with subgraphs: they are not decomposed.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.backends.common.retrace import FreshSizes
from mixbackend.contracts import (
    Argument,
    DecompositionLevel,
    GraphInput,
    InputRole,
    NodeRef,
    OpGraph,
    OpNode,
    OpView,
    RegionInput,
    SymbolicSize,
    refuse_special,
)
from mixbackend.contracts.describe_op import describe_op, value_meta
from mixbackend.contracts.torch_compat import (
    decomposition_table,
    fresh_fake_mode,
    operator_by_name,
    schema_arguments,
    tracing_apart,
)


def decomposed_views(view: OpView, level: DecompositionLevel) -> tuple[OpView, ...] | None:
    """The ops that an op becomes on a level.

    Returns:
        Views in execution order, numbers left out; ``None`` if the op stays what it is or cannot be traced alone.
    """
    if refuse_special(view) is not None or operator_by_name(view.op) is None:
        return None
    return _of_signature(_signature(view), level)


def _signature(view: OpView) -> OpView:
    """The op with its place in the graph taken out: equal for equal work."""
    names = {item.name: f"input{index}" for index, item in enumerate(view.inputs)}
    arguments = tuple((name, _renamed(value, names)) for name, value in view.node.arguments)
    node = OpNode("op", view.op, arguments, view.outputs, tags=view.node.tags)
    inputs = tuple(dataclasses.replace(item, name=names[item.name]) for item in view.inputs)
    return OpView(node, inputs, view.phase, view.op_class, view.deterministic)


def _renamed(argument: Argument, names: dict[str, str]) -> Argument:
    if isinstance(argument, NodeRef):
        return NodeRef(names[argument.name])
    return tuple(_renamed(item, names) for item in argument) if isinstance(argument, tuple) else argument


@functools.lru_cache(maxsize=4096)
def _of_signature(view: OpView, level: DecompositionLevel) -> tuple[OpView, ...] | None:
    try:
        graph_module = _trace(view, level)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        # An op that cannot be traced alone (a kernel without meta, a size that depends on data) stays whole.
        return None
    graph = _describe(graph_module, view)
    ops = [node.op for node in graph.placed_nodes]
    if view.op in ops:
        return None
    return tuple(graph.view(node.name) for node in graph.placed_nodes)


def _trace(view: OpView, level: DecompositionLevel) -> torch.fx.GraphModule:
    fake_mode = fresh_fake_mode()
    inputs = [RegionInput(item.name, item.meta, item.role) for item in view.inputs]
    sizes = FreshSizes(fake_mode, inputs)
    names = [item.name for item in inputs]
    operator = operator_by_name(view.op)
    keyword_only = {item.name for item in schema_arguments(operator) if item.keyword_only}

    def call(*values: Any) -> Any:
        known = dict(zip(names, values, strict=True))
        given = {name: _actual(value, known, sizes) for name, value in view.node.arguments}
        positional = [value for name, value in given.items() if name not in keyword_only]
        return operator(*positional, **{name: given[name] for name in keyword_only})  # type: ignore[misc]

    with tracing_apart(fake_mode), fake_mode:
        values = [sizes.value(item) for item in inputs]
        traced = make_fx(
            call, decomposition_table=decomposition_table(level), tracing_mode="real", _allow_non_fake_inputs=True
        )(*values)
    traced.graph.eliminate_dead_code()
    return traced


def _actual(argument: Argument, known: dict[str, Any], sizes: FreshSizes) -> Any:
    if isinstance(argument, NodeRef):
        return known[argument.name]
    if isinstance(argument, tuple):
        return [_actual(item, known, sizes) for item in argument]
    return sizes.number(argument) if isinstance(argument, SymbolicSize) else argument


def _describe(graph_module: torch.fx.GraphModule, view: OpView) -> OpGraph:
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    inputs = tuple(
        GraphInput(node.name, value_meta(node.meta["val"]), item.role)
        for node, item in zip(placeholders, view.inputs, strict=True)
    )
    constants = tuple(
        GraphInput(node.name, value_meta(getattr(graph_module, str(node.target))), InputRole.CONSTANT)
        for node in graph_module.graph.find_nodes(op="get_attr")
    )
    nodes = tuple(describe_op(node) for node in graph_module.graph.nodes if node.op == "call_function")
    return OpGraph("decomposed", view.phase, inputs + constants, nodes, (), deterministic=view.deterministic)
