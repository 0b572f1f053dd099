"""Lower a region: every op replaced by what it becomes at a lower level.

Place: above ``op_lowering``, below ``lowered``. Input: a region as it was cut, and a level. Output: the region that a
backend of that level compiles: the same inputs, outputs and order of results, and other ops in between.
Invariants: the region is only read, and no guard is added to its symbols. The last step of an op has the op's name, or
that of the ``getitem`` that takes the result, so outputs keep theirs. What a backend claims whole stays whole: matched
patterns, operators of ``ops.WRITING``, operators with subgraphs. Steps carry module and source line of their op. Text
and key say the level.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import sympy
import torch
import torch.fx

from mixbackend.contracts.describe_op import describe_op, is_subgraph, value_meta
from mixbackend.contracts.errors import RegionTextError
from mixbackend.contracts.fresh_sizes import SizePlace
from mixbackend.contracts.graph import GraphInput, OpGraph
from mixbackend.contracts.op_levels import OpLevel, operators_of
from mixbackend.contracts.op_lowering import OpLowering, lower_op
from mixbackend.contracts.ops import CLAIMED_WHOLE, InputRole, OpTag, OpView
from mixbackend.contracts.region import LOCAL_KEY, Region
from mixbackend.contracts.region_text import region_key, write_region_text
from mixbackend.contracts.sizes import Condition
from mixbackend.contracts.torch_compat import (
    fake_mode_of,
    fake_tensor,
    graph_module_of,
    guards_suppressed,
    is_guarded,
    symbolic_expression,
    symbolic_number,
    without_dispatch_modes,
)

GETITEM = "getitem"

_ORIGIN = ("nn_module_stack", "fwd_nn_module_stack", "stack_trace")
_local_keys = itertools.count()


def lower_region(region: Region, level: OpLevel) -> Region:
    """See the module's docstring.

    Raises:
        LoweringError: an op of it is of no lower level.
    """
    return _Lowerer(region, level).lower()


class _Lowerer:
    """Builds the new graph while it walks the old one."""

    def __init__(self, region: Region, level: OpLevel) -> None:
        self._region = region
        self._level = level
        self._old = region.graph_module.graph
        self._graph = torch.fx.Graph()
        self._views = {view.node.name: view for view in region.views}
        self._whole = {name for _, names in region.matches for name in names}
        self._nodes: dict[torch.fx.Node, torch.fx.Node] = {}
        self._results: dict[torch.fx.Node, tuple[torch.fx.Node | None, ...]] = {}
        self._numbers: dict[sympy.Expr, torch.fx.Node] = {}
        self._origin: dict[torch.fx.Node, OpView] = {}
        self._conditions: dict[Condition, None] = {}
        self._mode: Any = fake_mode_of(node.meta.get("val") for node in self._old.nodes)

    def lower(self) -> Region:
        with without_dispatch_modes(), torch.no_grad(), guards_suppressed(self._mode):
            for node in self._old.nodes:
                if node.op != "output":
                    self._add(node)
        region = self._region
        by_name = {old.name: new for old, new in self._nodes.items()}
        outputs = tuple(replace(item, name=by_name[item.name].name) for item in region.outputs)
        self._graph.output(tuple(by_name[item.name] for item in region.outputs))
        module = graph_module_of(region.graph_module, self._graph)
        try:
            text = write_region_text(
                module, region.inputs, outputs, region.phase, region.matches, region.deterministic, self._level
            )
            key = region_key(text)
        except RegionTextError as error:
            text, key = str(error), f"{LOCAL_KEY}{self._level}-{next(_local_keys)}"
        return replace(
            region,
            key=key,
            text=text,
            graph_module=module,
            outputs=outputs,
            views=self._described(),
            level=self._level,
            preconditions=tuple(self._conditions),
        )

    def _add(self, node: torch.fx.Node) -> None:
        view = self._views.get(node.name)
        source = node.args[0] if node.op == "call_function" and node.args else None
        if view is not None and view.op == GETITEM and source in self._results:
            taken = self._results[source][node.args[1]]  # type: ignore[index]
            if taken is not None:
                self._nodes[node] = taken
        elif view is None or self._stays(view):
            self._copy(node, view)
        else:
            self._splice(node, view, lower_op(view, self._level))

    def _stays(self, view: OpView) -> bool:
        claimed = view.node.name in self._whole or view.node.tags & CLAIMED_WHOLE
        return bool(claimed) or view.op == GETITEM or view.op in operators_of(self._level)

    def _copy(self, node: torch.fx.Node, view: OpView | None) -> None:
        copy = self._nodes[node] = self._graph.node_copy(node, self._nodes.__getitem__)
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            self._numbers.setdefault(symbolic_expression(value), copy)
        if view is not None:
            self._origin[copy] = view

    def _splice(self, node: torch.fx.Node, view: OpView, lowering: OpLowering) -> None:
        back = {symbol: size.expression for symbol, size in lowering.originals.items()}
        names = self._names(node, view, lowering)
        by_name = {item.name: item for item in node.all_input_nodes}
        inputs = [self._nodes[by_name[item.name]] for item in view.inputs]
        mapped = dict(zip(lowering.inputs, inputs, strict=True))
        symbols = dict(lowering.symbols)

        def new(old: torch.fx.Node) -> torch.fx.Node:
            if old not in mapped:
                value = self._value(old.meta["val"], back)
                mapped[old] = self._number(value, inputs[symbols[old].position], symbols[old])
            return mapped[old]

        self._assume(lowering)
        for place, step in enumerate(lowering.steps):
            value = self._value(step.meta["val"], back)
            known = self._numbers.get(symbolic_expression(value)) if isinstance(value, torch.SymInt) else None
            if known is not None:
                mapped[step] = known
                continue
            arguments = torch.fx.node.map_arg((step.args, step.kwargs), new)
            name = names.get(step, f"{node.name}__{place}")
            made = self._graph.create_node("call_function", step.target, *arguments, name=name)  # type: ignore[arg-type]
            made.meta = {"val": value, **{key: node.meta[key] for key in _ORIGIN if key in node.meta}}
            if isinstance(value, torch.SymInt):
                self._numbers[symbolic_expression(value)] = made
            mapped[step], self._origin[made] = made, view
        results = tuple(None if item is None else mapped[item] for item in lowering.results)
        if OpTag.MULTI_OUTPUT in view.node.tags:
            self._results[node] = results
        elif results[0] is not None:
            self._nodes[node] = results[0]

    def _assume(self, lowering: OpLowering) -> None:
        """Keep what was assumed about sizes; the captured graph's own guards see to most of it."""
        for guard, condition in lowering.conditions:
            if not is_guarded(self._mode.shape_env, guard):
                self._conditions[condition] = None

    def _names(self, node: torch.fx.Node, view: OpView, lowering: OpLowering) -> dict[torch.fx.Node, str]:
        """Names of the steps that compute results."""
        if OpTag.MULTI_OUTPUT not in view.node.tags:
            return {item: node.name for item in lowering.results if item is not None}
        takers: dict[Any, str] = {}
        for user in node.users:
            takers.setdefault(user.args[1], user.name)
        return {
            item: takers[place] for place, item in enumerate(lowering.results) if item is not None and place in takers
        }

    def _number(self, value: Any, shown_by: torch.fx.Node, place: SizePlace) -> torch.fx.Node:
        """The node of a size: one that is there, or one that reads it off what comes in."""
        expression = symbolic_expression(value)
        if expression not in self._numbers and place.kind == "number":
            self._numbers[expression] = shown_by
        if expression not in self._numbers:
            made = self._graph.call_function(torch.ops.aten.sym_size.int, (shown_by, place.axis))
            made.meta = {"val": value}
            self._numbers[expression] = made
        return self._numbers[expression]

    def _value(self, value: Any, back: dict[sympy.Symbol, sympy.Expr]) -> Any:
        """A fake value of the lowering in the region's own mode and sizes."""
        if isinstance(value, (tuple, list)):
            return tuple(self._value(item, back) for item in value)
        if isinstance(value, torch.SymInt):
            return symbolic_number(self._mode.shape_env, symbolic_expression(value).xreplace(back))
        if not isinstance(value, torch.Tensor):
            return value
        sizes, strides = ([self._value(size, back) for size in sizes] for sizes in (value.shape, value.stride()))
        return fake_tensor(self._mode, sizes, strides, value.dtype, value.device)

    def _described(self) -> tuple[OpView, ...]:
        region = self._region
        inputs = [GraphInput(item.name, item.meta, item.role) for item in region.inputs]
        inputs += [
            GraphInput(node.name, value_meta(node.meta.get("val")), InputRole.CONSTANT)
            for node in self._graph.find_nodes(op="get_attr")
            if not is_subgraph(node)
        ]
        ops = []
        for node in self._graph.nodes:
            if node.op == "call_function":
                origin = self._origin.get(node)
                given = (origin.node.module, origin.node.module_class, origin.node.source) if origin else ()
                ops.append(describe_op(node, *given))
        described = OpGraph(region.id, region.phase, tuple(inputs), tuple(ops), (), deterministic=region.deterministic)
        return tuple(described.view(node.name) for node in described.placed_nodes)
