"""Describe: a captured torch.fx graph as one immutable ``OpGraph``.

Place: second stage of the pipeline, after capture, before judging.
Input: an ATen graph with fake values in ``meta["val"]``, as AOTAutograd gives it, and the roles of its placeholders.
Output: ``contracts.OpGraph``; node names are those of the fx graph, so a plan can be carried back.
Invariants: reads the graph only; adds no guard; equal graphs give equal values.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import (
    Argument,
    GraphInput,
    InputRole,
    NodeRef,
    Opaque,
    OpGraph,
    OpNode,
    OpTag,
    Phase,
    SymbolicSize,
    TensorMeta,
    ValueMeta,
)
from mixbackend.contracts.torch_compat import (
    is_higher_order,
    is_mutating,
    is_operator,
    returns_nothing,
    schema_arguments,
    symbolic_bounds,
    symbolic_expression,
    symbolic_hint,
    walk_metadata,
)

_COLLECTIVE_NAMESPACES = ("_c10d_functional", "c10d_functional", "c10d", "_dtensor")
_VIEW_BY_NAME = ("aten.reshape.default", "aten._unsafe_view.default", "aten._reshape_alias.default")
_STRIDE_SENSITIVE = ("aten.as_strided.default", "aten.as_strided_scatter.default", "aten.as_strided_.default")
_MODULE_ROOT = re.compile(r"^L\['\w+'\]")
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
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            inputs.append(_graph_input(node, roles.get(node.name, PlaceholderRole(InputRole.ACTIVATION))))
        elif node.op == "get_attr" and isinstance(node.meta.get("val"), torch.Tensor):
            inputs.append(_graph_input(node, PlaceholderRole(InputRole.CONSTANT, str(node.target))))
        elif node.op == "call_function":
            nodes.append(_op_node(node))
        elif node.op == "output":
            outputs = tuple(_output_name(item) for item in _as_tuple(node.args[0]))
    return OpGraph(graph_id, phase, tuple(inputs), tuple(nodes), outputs, _effects(inputs, nodes))


def value_meta(value: Any) -> ValueMeta:
    """Meta of one fake value; what is neither tensor nor number becomes ``None``."""
    if isinstance(value, torch.Tensor):
        shape = tuple(size_of(size) for size in value.shape)
        strided = value.layout is torch.strided
        stride = tuple(size_of(step) for step in value.stride()) if strided else (0,) * len(shape)
        return TensorMeta(shape, stride, value.dtype, value.device)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _symbolic_number(value)
    return value if isinstance(value, (int, float, bool)) else None


def size_of(size: int | torch.SymInt) -> int | SymbolicSize:
    """A size as a value; a symbolic size whose expression is a number becomes that number."""
    if isinstance(size, int):
        return size
    number = _symbolic_number(size)
    return number if isinstance(number, SymbolicSize) else int(number)  # type: ignore[arg-type]


def _symbolic_number(value: Any) -> SymbolicSize | int | float | bool:
    expression = symbolic_expression(value)
    if getattr(expression, "is_number", False):
        return value.node.pytype(expression)
    hint = symbolic_hint(value)
    if not isinstance(value, torch.SymInt):
        return SymbolicSize(expression, None if hint is None else int(hint))
    lower, upper = symbolic_bounds(value)
    return SymbolicSize(expression, None if hint is None else int(hint), lower, upper)


def _graph_input(node: torch.fx.Node, role: PlaceholderRole) -> GraphInput:
    meta = value_meta(node.meta.get("val"))
    if not isinstance(meta, TensorMeta) and role.role is InputRole.ACTIVATION:
        role = PlaceholderRole(InputRole.SYMBOL)
    return GraphInput(node.name, meta, role.role, role.source)


def _output_name(item: Any) -> str | None:
    return item.name if isinstance(item, torch.fx.Node) else None


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _op_node(node: torch.fx.Node) -> OpNode:
    value = node.meta.get("val")
    outputs = tuple(value_meta(item) for item in _as_tuple(value))
    module, module_class = _module_of(node)
    return OpNode(
        name=node.name,
        op=operator_name(node.target),
        arguments=tuple(_arguments(node)),
        outputs=outputs,
        module=module,
        module_class=module_class,
        source=_source_of(node),
        tags=_tags(node.target, value, node.kwargs),
    )


def operator_name(target: Any) -> str:
    """Full name of an fx target: ``aten.add.Tensor``, ``getitem``, ``symbolic.mul``, ``higher_order.cond``."""
    if is_operator(target):
        return str(target)
    if target is operator.getitem:
        return "getitem"
    if is_higher_order(target):
        return f"higher_order.{target.name()}"
    return f"symbolic.{getattr(target, '__name__', target)}"


def _arguments(node: torch.fx.Node) -> Iterable[tuple[str, Argument]]:
    if node.target is operator.getitem:
        return (("self", _argument(node.args[0])), ("index", _argument(node.args[1])))
    if not is_operator(node.target):
        positional = [(f"arg{index}", _argument(item)) for index, item in enumerate(node.args)]
        return positional + [(name, _argument(item)) for name, item in node.kwargs.items()]
    named: list[tuple[str, Argument]] = []
    for index, argument in enumerate(schema_arguments(node.target)):
        if index < len(node.args) and not argument.keyword_only:
            value = node.args[index]
        else:
            value = node.kwargs.get(argument.name, argument.default)
        named.append((argument.name, _argument(value)))
    return named


def _argument(value: Any) -> Argument:
    if isinstance(value, torch.fx.Node):
        return Opaque(str(value.target)) if _is_subgraph(value) else NodeRef(value.name)
    if isinstance(value, (tuple, list)):
        return tuple(_argument(item) for item in value)
    if isinstance(value, torch.SymInt):
        return size_of(value)
    known = (int, float, bool, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
    if value is None or isinstance(value, known):
        return value
    return Opaque(type(value).__name__)


def _is_subgraph(node: torch.fx.Node) -> bool:
    return node.op == "get_attr" and not isinstance(node.meta.get("val"), torch.Tensor)


def _tags(target: Any, value: Any, kwargs: Mapping[str, Any]) -> frozenset[OpTag]:
    tags: set[OpTag] = set()
    if isinstance(value, (tuple, list)):
        tags.add(OpTag.MULTI_OUTPUT)
    if is_higher_order(target):
        tags.add(OpTag.HIGHER_ORDER)
    if not is_operator(target):
        return frozenset(tags)
    name = str(target)
    # An operator that yields a number (item) is computed by the stitched code like other symbolic arithmetic.
    if value is not None and not any(isinstance(item, torch.Tensor) for item in _as_tuple(value)):
        return frozenset(tags)
    facts = (
        (OpTag.RANDOM, torch.Tag.nondeterministic_seeded in target.tags and not _draws_nothing(name, kwargs)),
        (OpTag.MUTATES, is_mutating(target)),
        (OpTag.COLLECTIVE, target.namespace in _COLLECTIVE_NAMESPACES),
        (OpTag.VIEW, target.is_view or name in _VIEW_BY_NAME),
        (OpTag.STRIDE_SENSITIVE, name in _STRIDE_SENSITIVE),
        (OpTag.DATA_DEPENDENT, torch.Tag.dynamic_output_shape in target.tags),
        (OpTag.EFFECT, returns_nothing(target) or _unusual_layout(value)),
    )
    return frozenset(tags | {tag for tag, holds in facts if holds})


def _draws_nothing(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Attention draws random numbers only for dropout, which inference and the CPU kernels do not have."""
    return name.startswith("aten._scaled_dot_product_flash_attention_for_cpu")


def _unusual_layout(value: Any) -> bool:
    """Sparse and nested tensors: only eager knows them."""
    return any(isinstance(item, torch.Tensor) and item.layout is not torch.strided for item in _as_tuple(value))


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
    trace = (node.meta.get("stack_trace") or "").strip().splitlines()
    frames = [line.strip() for line in trace if line.strip().startswith("File ")]
    if not frames:
        return ""
    parts = frames[-1].removeprefix("File ").split(", ")
    if len(parts) < 3:
        return frames[-1]
    return f"{parts[0].strip(chr(34))}:{parts[1].removeprefix('line ')} {parts[2]}"


def _effects(inputs: list[GraphInput], nodes: list[OpNode]) -> tuple[tuple[str, str], ...]:
    """Order edges that data edges do not carry: the chain of ordered ops, and readers before and after writers."""
    edges: dict[tuple[str, str], None] = {}
    root = {item.name: item.name for item in inputs}
    touched: dict[str, list[str]] = {}
    last_write: dict[str, str] = {}
    previous: str | None = None
    for node in nodes:
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
        if node.tags & _ORDERED:
            if previous is not None:
                edges[previous, node.name] = None
            previous = node.name
        alias = _aliased(node)
        root[node.name] = root.get(alias, alias) if alias is not None else node.name
    return tuple(edges)


def _written_storage(node: OpNode, root: Mapping[str, str]) -> str | None:
    if OpTag.MUTATES not in node.tags or not node.references():
        return None
    first = node.references()[0]
    return root.get(first, first)


def _aliased(node: OpNode) -> str | None:
    """The value whose storage the node's result may share."""
    if OpTag.VIEW in node.tags or OpTag.MUTATES in node.tags or node.op == "getitem":
        references = node.references()
        return references[0] if references else None
    return None
