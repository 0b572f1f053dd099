"""Lower one op: the ops of a lower level that compute what it computes.

Place: below ``lowered``. Input: an op as the planner sees it, and a level. Output: an ``OpLowering``: a small graph
that ``region_lowering`` puts in the op's place, and the views that a backend is asked about.
It is made of torch's decompositions, and of ours where torch has none (``torch_compat.prim_forms``), traced on fake
values under symbols of its own, from the op's metas alone: what is judged is what is compiled.
Invariants: only operators of the level's closed list come out; there is an op for every result, which has the shape and
type that eager gives. Equal ops (operator, metas, arguments) are lowered once in a process. No guard is added to the
captured graph; what torch assumed about sizes is told as conditions on them.
Non-goals: random numbers, writes, collectives, subgraphs, memory as it comes, positions in memory, sizes that values
decide: these are refused, because taken apart they would mean something else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sympy
import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.contracts.describe_op import as_tuple, describe_op, operator_name, value_meta
from mixbackend.contracts.errors import LoweringError
from mixbackend.contracts.fresh_sizes import FreshSizes, SizePlace, assumed_guards
from mixbackend.contracts.graph import GraphInput, OpGraph
from mixbackend.contracts.op_levels import OpLevel, operators_of
from mixbackend.contracts.ops import Argument, InputRole, NodeRef, Opaque, OpNode, OpTag, OpView, ValueMeta
from mixbackend.contracts.sizes import Condition, SymbolicSize
from mixbackend.contracts.support import refuse_special
from mixbackend.contracts.tensors import TensorMeta
from mixbackend.contracts.torch_compat import (
    decomposition_table,
    fresh_fake_mode,
    guards_counted,
    operator_by_name,
    schema_arguments,
    symbolic_kernels,
    tracing_apart,
    written_when_run,
)

_BY_POSITION = frozenset({"aten.as_strided_copy.default"})
_MOST = 20_000
"""Kept lowerings; a program of so many different ops begins anew."""

_known: dict[Hashable, OpLowering | LoweringError] = {}
_lock = threading.Lock()


def _free_lock() -> None:
    global _lock
    _lock = threading.Lock()


# A thread that lowers an op while its process forks is not there in the child, which would wait for it for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_lock)


@dataclass(frozen=True)
class OpLowering:
    """See the module's docstring.

    Attributes:
        graph: placeholders of symbols, then of ``inputs``; returns a tuple of one node per result, ``None`` for none.
        symbols: placeholders of sizes, with where the op's inputs show each.
        inputs: placeholders, one per distinct value that the op reads, in the order of ``OpView.inputs``.
        results: nodes, one per result of the op.
        originals: the op's size behind each symbol of the graph.
        conditions: what was assumed about sizes, as torch would guard it, and as a condition.
        views: the ops that a backend is asked about, in their order.
    """

    graph: torch.fx.Graph
    symbols: tuple[tuple[torch.fx.Node, SizePlace], ...]
    inputs: tuple[torch.fx.Node, ...]
    results: tuple[torch.fx.Node | None, ...]
    originals: Mapping[sympy.Symbol, SymbolicSize]
    conditions: tuple[tuple[sympy.Basic, Condition], ...]
    views: tuple[OpView, ...]

    @property
    def steps(self) -> tuple[torch.fx.Node, ...]:
        """What is computed, in order."""
        return tuple(node for node in self.graph.nodes if node.op == "call_function")


def lower_op(view: OpView, level: OpLevel) -> OpLowering:
    """Lower an op.

    Raises:
        LoweringError: it is of no lower level, or torch leaves something over that is not in the level's list.
    """
    key = (level, view.op, *_form(view))
    found = _known.get(key)
    if found is None:
        with _lock:
            found = _known.get(key) or _lower(view, level)
            if len(_known) >= _MOST:
                _known.clear()
            _known[key] = found
    if isinstance(found, LoweringError):
        raise LoweringError(found.what)
    return found


def _form(view: OpView) -> tuple[Hashable, ...]:
    slots = {item.name: slot for slot, item in enumerate(view.inputs)}
    arguments = tuple((name, _abstract(value, slots)) for name, value in view.node.arguments)
    metas = tuple((type(item.meta).__name__, item.meta, item.role) for item in view.inputs)
    return arguments, metas, view.outputs, view.node.tags, view.node.module_class, view.phase, view.deterministic


def _abstract(value: Argument, slots: Mapping[str, int]) -> Hashable:
    if isinstance(value, NodeRef):
        return "input", slots[value.name]
    if isinstance(value, tuple):
        return tuple(_abstract(item, slots) for item in value)
    # One, 1.0 and true are equal, and so are the two zeros.
    return type(value).__name__, repr(value) if isinstance(value, (float, complex)) else value


def _lower(view: OpView, level: OpLevel) -> OpLowering | LoweringError:
    special = refuse_special(view)
    if special is not None:
        return LoweringError(special.detail)
    if OpTag.STRIDE_SENSITIVE in view.node.tags or view.op in _BY_POSITION:
        return LoweringError(f"{view.op} reads memory by position")
    operator = operator_by_name(view.op)
    if operator is None:
        return LoweringError(f"{view.op} is no operator of torch's")
    try:
        return _traced(view, operator, level)
    except LoweringError as error:
        return error
    except Exception as error:  # whatever a decomposition does with these arguments, the op is then not lowered
        words = (str(error).splitlines() or [""])[0]
        return LoweringError(f"torch does not lower {view.op} to {level}: {type(error).__name__}: {words}")


def _traced(view: OpView, operator: Any, level: OpLevel) -> OpLowering:
    mode = fresh_fake_mode()
    metas = [item.meta for item in view.inputs]
    sizes = FreshSizes(mode, metas)
    count = len(sizes.originals)
    table = decompositions(level)
    call = _Call(view, operator, table, sizes, level)
    with tracing_apart(mode), mode, guards_counted(), written_when_run(), symbolic_kernels(bool(count)):
        given = (*sizes.symbols(), *(sizes.value(meta) for meta in metas))
        graph = make_fx(
            lambda *values: call(values[count:]),
            decomposition_table=table,
            tracing_mode="real",
            _allow_non_fake_inputs=True,
        )(*given).graph
    graph.eliminate_dead_code()
    _written_as_planned(graph, level)
    _check_closed(graph, view, level)
    placeholders = [*graph.find_nodes(op="placeholder")]
    (output,) = graph.find_nodes(op="output")
    originals = dict(sizes.originals)
    for node, place in zip(placeholders, sizes.places, strict=False):
        # What computes the input in the region may lay it out otherwise than eager.
        if place.kind == "stride" and node.users:
            raise LoweringError(f"{view.op} has a size that only strides of its inputs show")
    return OpLowering(
        graph=graph,
        symbols=tuple(zip(placeholders[:count], sizes.places, strict=True)),
        inputs=tuple(placeholders[count:]),
        results=tuple(output.args[0]),
        originals=originals,
        conditions=assumed_guards(mode, originals),
        views=_views(view, graph, tuple(placeholders[count:]), originals),
    )


@cache
def decompositions(level: OpLevel) -> Mapping[Any, Any]:
    """Decompositions to a level: of operators that are not in its list."""
    listed = operators_of(level)
    table = decomposition_table(level)
    return {operator: decompose for operator, decompose in table.items() if str(operator) not in listed}


class _Call:
    """The op on the values of its inputs; every result is a tensor of its own."""

    def __init__(
        self, view: OpView, operator: Any, table: Mapping[Any, Any], sizes: FreshSizes, level: OpLevel
    ) -> None:
        self._view = view
        self._operator = operator
        self._table = table
        self._sizes = sizes
        self._level = level

    def __call__(self, values: Sequence[Any]) -> tuple[torch.Tensor | None, ...]:
        by_name = {item.name: value for item, value in zip(self._view.inputs, values, strict=True)}
        given, keywords = self._arguments(by_name)
        results = self._table.get(self._operator, self._operator)(*given, **keywords)
        if results is NotImplemented:
            results = self._operator(*given, **keywords)
        taken = [value for value in values if isinstance(value, torch.Tensor)]
        finished: list[torch.Tensor | None] = []
        for result, meta in zip(as_tuple(results), self._view.outputs, strict=True):
            finished.append(None if meta is None else self._as_promised(result, meta, taken))
            taken += [item for item in finished[-1:] if item is not None]
        return tuple(finished)

    def _as_promised(self, result: Any, meta: ValueMeta, taken: Sequence[torch.Tensor]) -> torch.Tensor:
        if not isinstance(result, torch.Tensor) or not isinstance(meta, TensorMeta):
            raise LoweringError(f"{self._view.op} gives a number, or nothing where eager gives a tensor")
        if len(result.shape) != meta.rank or result.device.type != meta.device.type:
            raise LoweringError(f"{self._view.op} would give {value_meta(result)}, and gives {meta}")
        if result.dtype != meta.dtype:
            result = torch.ops.aten._to_copy.default(result, dtype=meta.dtype)
        if any(result is item for item in taken):
            alias = self._level == "prims"
            result = torch.ops.prims.view_of.default(result) if alias else torch.ops.aten.alias.default(result)
        return result

    def _arguments(self, by_name: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """As a caller would write them: some decompositions do not take all that the schema has a default for."""
        given: list[Any] = []
        keywords: dict[str, Any] = {}
        spoken = dict(self._view.node.arguments)
        schema = schema_arguments(self._operator)
        positional = [item for item in schema if not item.keyword_only]
        while positional and positional[-1].is_default(spoken[positional[-1].name]):
            positional.pop()
        for item in schema:
            value = spoken[item.name]
            if item in positional:
                given.append(self._argument(value, by_name))
            elif not item.is_default(value):
                keywords[item.name] = self._argument(value, by_name)
        return given, keywords

    def _argument(self, value: Argument, by_name: Mapping[str, Any]) -> Any:
        if isinstance(value, NodeRef):
            return by_name[value.name]
        if isinstance(value, tuple):
            return [self._argument(item, by_name) for item in value]
        if isinstance(value, Opaque):
            raise LoweringError(f"{self._view.op} has an argument that is no data: {value}")
        return self._sizes.number(value)


def _written_as_planned(graph: torch.fx.Graph, level: OpLevel) -> None:
    """``view`` becomes ``reshape``, as in every region; at core ATen a prim that has a name there gets it."""
    aten, prims = torch.ops.aten, torch.ops.prims
    for node in graph.nodes:
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
        elif level == "core_aten" and node.target is prims.convert_element_type.default:
            node.target, node.args, node.kwargs = aten._to_copy.default, node.args[:1], {"dtype": node.args[1]}


def _check_closed(graph: torch.fx.Graph, view: OpView, level: OpLevel) -> None:
    listed = operators_of(level)
    for node in graph.nodes:
        if node.op == "get_attr":
            raise LoweringError(f"torch lowers {view.op} to ops with a constant tensor")
        if node.op != "call_function" or not _has_tensors(node):
            continue
        name = operator_name(node.target)
        if name != "getitem" and name not in listed:
            raise LoweringError(f"torch lowers {view.op} to {name}, which is no operator of {level}")


def _has_tensors(node: torch.fx.Node) -> bool:
    return any(isinstance(item, torch.Tensor) for item in as_tuple(node.meta.get("val")))


def _views(
    view: OpView, graph: torch.fx.Graph, inputs: Sequence[torch.fx.Node], originals: Mapping[sympy.Symbol, SymbolicSize]
) -> tuple[OpView, ...]:
    """The ops as a backend sees them, under the graph's names and in the sizes of the op."""
    back = {symbol: size.expression for symbol, size in originals.items()}
    sizes = zip(graph.find_nodes(op="placeholder"), originals.values(), strict=False)
    taken = (
        *(GraphInput(node.name, size, InputRole.SYMBOL) for node, size in sizes),
        *(GraphInput(node.name, item.meta, item.role) for node, item in zip(inputs, view.inputs, strict=True)),
    )
    steps = [node for node in graph.nodes if node.op == "call_function"]
    nodes = tuple(_op_in_sizes(describe_op(node, "", view.node.module_class), back) for node in steps)
    described = OpGraph(view.node.name, view.phase, taken, nodes, (), deterministic=view.deterministic)
    return tuple(described.view(node.name) for node in described.placed_nodes)


def _op_in_sizes(node: OpNode, back: Mapping[sympy.Symbol, sympy.Expr]) -> OpNode:
    if not back:
        return node
    arguments = tuple((name, in_sizes(value, back)) for name, value in node.arguments)
    return replace(node, arguments=arguments, outputs=tuple(in_sizes(meta, back) for meta in node.outputs))


def in_sizes(value: Any, back: Mapping[sympy.Symbol, sympy.Expr]) -> Any:
    """A meta or an argument with other expressions for its symbols."""
    if isinstance(value, SymbolicSize):
        return replace(value, expression=value.expression.xreplace(back))
    if isinstance(value, TensorMeta):
        return replace(value, shape=in_sizes(value.shape, back), stride=in_sizes(value.stride, back))
    if isinstance(value, tuple):
        return tuple(in_sizes(item, back) for item in value)
    return value
