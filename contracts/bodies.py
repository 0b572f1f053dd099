"""Bodies of higher-order ops: what their subgraphs compute, how often, so that they have an honest price.

Place: beside ``describe_op``, which puts them into ``OpNode.bodies``; read by the cost model and the report.
Input: a node of a higher-order op in its fx graph. Output: its bodies.
How often a body runs is known of repeated subgraphs (once) and of scans (the length of what is scanned). It is assumed
of loops that end by their values (``ASSUMED_RUNS``); of branches the dearer one counts. A body that is placed by itself
(``compiled_body``) costs what its plan does. Attention with functions of its
own is written out: eager makes all scores, and calls the functions on all of them at once.
Invariants: reads only. What is not known here has the bodies that its arguments name, each run once.
Non-goals: placing what is inside bodies, which ``compile.driver`` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.fx

from mixbackend.contracts.compiled_body import CompiledBody
from mixbackend.contracts.opclass import op_class_of
from mixbackend.contracts.ops import Body, InputRole, InputView, NodeRef, OpNode, OpTag, OpView, ValueMeta
from mixbackend.contracts.sizes import Size, hint_of
from mixbackend.contracts.tensors import TensorMeta

ASSUMED_RUNS = 10.0
"""Assumed runs of a loop's body where the end is not known before it runs."""

Describe = Callable[[torch.fx.Node], OpNode]
MetaOf = Callable[[object], ValueMeta]


def bodies_of(node: torch.fx.Node, describe: Describe, meta_of: MetaOf) -> tuple[Body, ...]:
    """The bodies of a node, none if it names no subgraphs.

    Args:
        describe: one node of a subgraph as a value.
        meta_of: one fake value as a meta.
    """
    name = getattr(node.target, "__name__", str(node.target))
    bodies = [_body(graph, describe, meta_of) for graph in _subgraphs(node)]
    if name in ("flex_attention", "flex_attention_backward"):
        views = [body.views for body in bodies]
        return _attention(node, views, meta_of, products=2 if name == "flex_attention" else 5)
    if name == "cond":
        return tuple(replace(body, one_of_several=True) for body in bodies)
    if name.startswith("while_loop"):
        return tuple(replace(body, runs=ASSUMED_RUNS, assumed=True) for body in bodies)
    runs = _length(node, meta_of) if name in ("scan", "associative_scan", "map_impl") else 1.0
    return tuple(replace(body, runs=runs) for body in bodies)


def _subgraphs(node: torch.fx.Node) -> Iterator[torch.fx.GraphModule | CompiledBody]:
    owner = node.graph.owning_module
    for item in node.all_input_nodes:
        found = getattr(owner, str(item.target), None) if item.op == "get_attr" else None
        if isinstance(found, (torch.fx.GraphModule, CompiledBody)):
            yield found


def _body(graph: torch.fx.GraphModule | CompiledBody, describe: Describe, meta_of: MetaOf) -> Body:
    if not isinstance(graph, CompiledBody):
        return Body(_views(graph, describe, meta_of), 1.0)
    if graph.estimated_s is None:
        return Body(_views(graph.traced, describe, meta_of), 1.0, graph=graph.name)
    return Body((), 1.0, graph=graph.name, placed_s=graph.estimated_s)


def _views(module: torch.fx.GraphModule, describe: Describe, meta_of: MetaOf) -> tuple[OpView, ...]:
    metas: dict[str, ValueMeta] = {}
    views: list[OpView] = []
    for node in module.graph.nodes:
        value = node.meta.get("val", node.meta.get("example_value"))
        metas[node.name] = meta_of(value)
        if node.op != "call_function":
            continue
        described = describe(node)
        metas[node.name] = described.outputs[0] if described.outputs else None
        if not described.is_symbolic:
            views.append(_view(described, metas))
    return tuple(views)


def _view(node: OpNode, metas: dict[str, ValueMeta]) -> OpView:
    names = dict.fromkeys(node.references())
    inputs = tuple(InputView(name, metas.get(name), InputRole.ACTIVATION) for name in names)
    return OpView(node, inputs, "inference", op_class_of(node.op))


def _length(node: torch.fx.Node, meta_of: MetaOf) -> float:
    """How many slices a scan runs over: the first size of what is scanned."""
    xs = node.args[2] if getattr(node.target, "__name__", "") == "scan" else node.args[1]
    first = next((item for item in (xs if isinstance(xs, (tuple, list)) else (xs,))), None)
    meta = meta_of(first.meta.get("val")) if isinstance(first, torch.fx.Node) else None
    return float(hint_of(meta.shape[0])) if isinstance(meta, TensorMeta) and meta.rank else ASSUMED_RUNS


def _attention(
    node: torch.fx.Node, functions: list[tuple[OpView, ...]], meta_of: MetaOf, products: int
) -> tuple[Body, ...]:
    """Products, what eager does to the scores between them, and the functions on all scores at once."""
    query, key, value = (meta_of(item.meta.get("val")) for item in node.args[:3] if isinstance(item, torch.fx.Node))
    if not (isinstance(query, TensorMeta) and isinstance(key, TensorMeta) and isinstance(value, TensorMeta)):
        return tuple(Body(items, 1.0) for items in functions)
    *outer, rows, depth = query.shape
    batch, columns = math.prod(map(hint_of, outer)), key.shape[-2]
    scores = _like(query, (batch, rows, columns))
    left, right = _like(query, (batch, rows, depth)), _like(query, (batch, depth, columns))
    views = [_op("aten.bmm.default", {"self": left, "mat2": right}, scores) for _ in range(products)]
    views.append(_op("aten._softmax.default", {"self": scores}, scores))
    views.append(_op("aten.mul.Tensor", {"self": scores}, scores))
    views.append(_op("aten.where.self", {"self": scores}, scores))
    views.append(_op("aten.logsumexp.default", {"self": scores}, _like(query, (batch, rows))))
    views += [_on_all(view, scores) for items in functions for view in items]
    return (Body(tuple(views), 1.0),)


def _on_all(view: OpView, scores: TensorMeta) -> OpView:
    """An op of numbers as it runs on all scores."""

    def widened(meta: ValueMeta) -> ValueMeta:
        if not isinstance(meta, TensorMeta) or meta.rank:
            return meta
        return TensorMeta(scores.shape, scores.stride, meta.dtype, meta.device)

    outputs = tuple(map(widened, view.node.outputs))
    inputs = tuple(InputView(item.name, widened(item.meta), item.role) for item in view.inputs)
    node = OpNode(view.node.name, view.op, view.node.arguments, outputs, tags=view.node.tags)
    return OpView(node, inputs, view.phase, view.op_class)


def _op(op: str, operands: dict[str, TensorMeta], result: TensorMeta) -> OpView:
    arguments = tuple((name, NodeRef(name)) for name in operands)
    inputs = tuple(InputView(name, meta, InputRole.ACTIVATION) for name, meta in operands.items())
    return OpView(OpNode(op, op, arguments, (result,)), inputs, "inference", op_class_of(op))


def _like(meta: TensorMeta, shape: tuple[Size, ...]) -> TensorMeta:
    steps: list[int] = [1]
    for size in reversed(shape[1:]):
        steps.append(steps[-1] * hint_of(size))
    return TensorMeta(shape, tuple(reversed(steps)), meta.dtype, meta.device)


def is_free(view: OpView) -> bool:
    """Whether an op of a body moves nothing."""
    return view.op == "getitem" or OpTag.VIEW in view.node.tags
