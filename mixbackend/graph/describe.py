"""Describe: a captured torch.fx graph as one immutable ``OpGraph``.

Place: second stage of the pipeline, after capture, before judging.
Input: an ATen graph with fake values in ``meta["val"]``, as AOTAutograd gives it, and the roles of its placeholders.
Output: ``contracts.OpGraph``; node names are those of the fx graph, so a plan can be carried back.
Invariants: reads the graph, and torch's switch for deterministic algorithms, which Dynamo guards; adds no guard; equal
graphs give equal values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import WRITING, GraphInput, InputRole, OpGraph, OpNode, OpTag, Phase, TensorMeta
from mixbackend.contracts.describe_op import as_tuple, describe_op, operator_name, size_of, value_meta
from mixbackend.contracts.torch_compat import deterministic_asked, saved_positions, walk_metadata

__all__ = ["PlaceholderRole", "describe", "operator_name", "size_of", "value_meta"]

_MODULE_ROOT = re.compile(r"^L\['\w+'\]")
_READS_FORM = "aten.sym_"
"""Begins the names of operators that give a tensor's sizes and strides: they do not care what is written into it."""
_ORDERED = frozenset({OpTag.RANDOM, OpTag.MUTATES, OpTag.COLLECTIVE, OpTag.EFFECT, OpTag.HIGHER_ORDER})


@dataclass(frozen=True, slots=True)
class PlaceholderRole:
    """Role of one placeholder and, for weights, its qualified name."""

    role: InputRole
    source: str = ""


def describe(
    graph_module: torch.fx.GraphModule,
    phase: Phase,
    graph_id: str,
    roles: Mapping[str, PlaceholderRole] | None = None,
) -> OpGraph:
    """Describe a captured graph.

    Args:
        graph_module: ATen graph; every node but ``output`` carries ``meta["val"]``.
        phase: which graph of the model it is.
        graph_id: stable name for reports.
        roles: by placeholder name; others are activations.
    """
    roles = roles or {}
    inputs: list[GraphInput] = []
    nodes: list[OpNode] = []
    outputs: tuple[str | None, ...] = ()
    saved: frozenset[str] = frozenset()
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            inputs.append(_graph_input(node, roles.get(node.name, PlaceholderRole(InputRole.ACTIVATION))))
        elif node.op == "get_attr" and isinstance(node.meta.get("val"), torch.Tensor):
            inputs.append(_graph_input(node, PlaceholderRole(InputRole.CONSTANT, str(node.target))))
        elif node.op == "call_function":
            module, module_class = _module_of(node)
            nodes.append(describe_op(node, module, module_class, _source_of(node)))
        elif node.op == "output":
            outputs = tuple(_output_name(item) for item in as_tuple(node.args[0]))
            saved = _saved(node, outputs)
    effects = _effects(inputs, nodes)
    return OpGraph(graph_id, phase, tuple(inputs), tuple(nodes), outputs, effects, deterministic_asked(), saved)


def _graph_input(node: torch.fx.Node, role: PlaceholderRole) -> GraphInput:
    meta = value_meta(node.meta.get("val"))
    if not isinstance(meta, TensorMeta) and role.role is InputRole.ACTIVATION:
        role = PlaceholderRole(InputRole.SYMBOL)
    return GraphInput(node.name, meta, role.role, role.source)


def _output_name(item: Any) -> str | None:
    return item.name if isinstance(item, torch.fx.Node) else None


def _saved(output: torch.fx.Node, names: tuple[str | None, ...]) -> frozenset[str]:
    places = saved_positions(output)
    seen = {name for place, name in enumerate(names) if place not in places}
    return frozenset(name for name in names if name is not None and name not in seen)


def _module_of(node: torch.fx.Node) -> tuple[str, str]:
    entries = list(walk_metadata(node))
    if not entries:
        return "", ""
    path, module_class = entries[-1]
    text = _MODULE_ROOT.sub("", str(path))
    name = module_class if isinstance(module_class, str) else getattr(module_class, "__name__", "")
    return text.replace("['", ".").replace("']", "").strip("."), name.rsplit(".", 1)[-1]


def _source_of(node: torch.fx.Node) -> str:
    """The innermost line of the user's code that led to a node."""
    frame = innermost_frame(node)
    parts = frame.removeprefix("File ").split(", ")
    if len(parts) < 3:
        return frame
    return f"{parts[0].strip(chr(34))}:{parts[1].removeprefix('line ')} {parts[2]}"


def innermost_frame(node: torch.fx.Node) -> str:
    """The last line that begins with ``File`` in a node's stack trace; empty if there is none."""
    trace = (node.meta.get("stack_trace") or "").strip().splitlines()
    frames = [line.strip() for line in trace if line.strip().startswith("File ")]
    return frames[-1] if frames else ""


def _effects(inputs: list[GraphInput], nodes: list[OpNode]) -> tuple[tuple[str, str], ...]:
    """Order edges that data edges do not carry: the chain of ordered ops, and readers before and after writers."""
    edges: dict[tuple[str, str], None] = {}
    root = {item.name: item.name for item in inputs}
    touched: dict[str, list[str]] = {}
    last_write: dict[str, str] = {}
    previous: str | None = None
    for node in nodes:
        if node.op.startswith(_READS_FORM):
            continue
        storages = dict.fromkeys(root[name] for name in node.references() if name in root)
        written = _written_storage(node, root)
        for storage in storages:
            if storage in last_write:
                edges[last_write[storage], node.name] = None
        if written is not None:
            edges.update({(reader, node.name): None for reader in touched.get(written, ())})
            last_write[written] = node.name
        for storage in storages:
            touched.setdefault(storage, []).append(node.name)
        if node.tags & _ORDERED and node.op not in WRITING:
            # It touches one storage and nothing else: it keeps its order among the readers of that.
            if previous is not None:
                edges[previous, node.name] = None
            previous = node.name
        alias = node.aliased()
        root[node.name] = root.get(alias, alias) if alias is not None else node.name
    return tuple(edges)


def _written_storage(node: OpNode, root: Mapping[str, str]) -> str | None:
    if OpTag.MUTATES not in node.tags or not node.references():
        return None
    first = node.references()[0]
    return root.get(first, first)
