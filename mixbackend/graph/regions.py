"""Cut: the executable pieces of a captured graph, one per planned region.

Place: after planning, before compiling.
Input: the captured fx graph, its ``OpGraph`` and a legal ``Plan``. Output: ``BoundRegion`` values in execution order.
Invariants: the captured graph is only read; a region's graph is self-contained; numbers that a region can compute from
its own values are computed inside, all others come in as inputs; what its sizes are made of comes in as well, as far as
the graph's own inputs show it.
Non-goals: deciding anything about placement.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sympy
import torch
import torch.fx

from mixbackend.contracts import (
    InputRole,
    OpGraph,
    OpTag,
    Plan,
    PlannedRegion,
    Region,
    RegionInput,
    RegionOutput,
    RegionTextError,
    TensorMeta,
    entangled_writes,
)
from mixbackend.contracts.describe_op import as_tuple, is_subgraph
from mixbackend.contracts.region import LOCAL_KEY
from mixbackend.contracts.region_text import region_key, write_region_text
from mixbackend.contracts.torch_compat import graph_module_of, symbolic_expression
from mixbackend.graph.aliases import ReturnedViews, returned_views
from mixbackend.graph.describe import value_meta
from mixbackend.graph.number_order import NumberOrder

_READS_STRIDES = frozenset({OpTag.HIGHER_ORDER, OpTag.RANDOM, OpTag.MUTATES})
"""Ops with a result that may depend on the strides of their input; random ops fill their result in memory order."""

_local_keys = itertools.count()


@dataclass(frozen=True)
class BoundRegion:
    """A region and the values of the captured graph that it reads and computes.

    Attributes:
        planned: the plan's entry.
        region: what the owner compiles.
        inputs: names of captured nodes, one per region input.
        outputs: names of captured nodes, one per region output.
        members: names of captured nodes that it runs, in graph order, copies included.
        entangled: whether it writes into storage that several of its inputs share: its owner takes effects.
    """

    planned: PlannedRegion
    region: Region
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    members: tuple[str, ...] = ()
    entangled: bool = False


def cut_regions(
    graph_module: torch.fx.GraphModule,
    graph: OpGraph,
    plan: Plan,
    exact_input_backends: frozenset[str] = frozenset(),
    views_inside: bool = False,
) -> tuple[BoundRegion, ...]:
    """Cut every region of a plan.

    Args:
        graph_module: the captured graph that ``graph`` describes.
        graph: its description.
        plan: a legal plan for it.
        exact_input_backends: backends that rely on inputs having the traced strides.
        views_inside: whether views that the graph returns are computed by the regions that own them, as for a look at
            each of them, and not outside.
    """
    views = _as_they_are(graph) if views_inside else returned_views(graph)
    return _Cutter(graph_module, graph, plan, exact_input_backends, views).cut_all(plan)


def whole_region(graph_module: torch.fx.GraphModule, graph: OpGraph) -> Region:
    """A captured graph as one region, which computes the numbers that its ops read from the graph's own inputs."""
    names = tuple(node.name for node in graph.placed_nodes)
    planned = PlannedRegion("r0", "none", names, copies=_numbers_read(graph, frozenset(names)))
    plan = Plan(graph.id, graph.phase, graph.dynamic, (planned,))
    return cut_regions(graph_module, graph, plan, views_inside=True)[0].region


def _as_they_are(graph: OpGraph) -> ReturnedViews:
    return ReturnedViews(frozenset(), frozenset(name for name in graph.outputs if name is not None))


def _numbers_read(graph: OpGraph, readers: frozenset[str]) -> tuple[str, ...]:
    """Nodes of numbers that these nodes read, at any distance."""
    read: set[str] = set()
    for node in reversed(graph.nodes):
        if node.name in readers or node.name in read:
            read.update(node.references())
    return tuple(node.name for node in graph.nodes if node.is_symbolic and node.name in read)


class _Cutter:
    """Shared look-ups for cutting all regions of one graph."""

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        graph: OpGraph,
        plan: Plan,
        exact_input_backends: frozenset[str],
        views: ReturnedViews,
    ) -> None:
        self._module = graph_module
        self._graph = graph
        self._nodes = {node.name: node for node in graph_module.graph.nodes}
        self._position = {name: index for index, name in enumerate(self._nodes)}
        self._owned = {name: region for region in plan.regions for name in region.nodes}
        self._graph_outputs = views.outputs
        self._stride_readers = self._regions_reading_strides(plan, exact_input_backends)
        self._root = graph.storage_of
        self._numbers = tuple(node for node in graph.nodes if node.is_symbolic)
        read = {name for view in views.nodes for name in graph.node_by_name[view].references()}
        self._numbers_outside = {node.name for node in self._numbers if node.name in read}
        self._shown_by = self._symbols_of_inputs()
        self._rank = {region.id: rank for rank, region in enumerate(plan.regions)}
        self._order = NumberOrder(graph, {name: self._rank[region.id] for name, region in self._owned.items()})

    def cut_all(self, plan: Plan) -> tuple[BoundRegion, ...]:
        members = [self._members(planned) for planned in plan.regions]
        inputs = [self._inputs(names) for names in members]
        required = self._required(name for names in inputs for name in names)
        return tuple(
            self._cut(planned, names, sources, required)
            for planned, names, sources in zip(plan.regions, members, inputs, strict=True)
        )

    def _members(self, planned: PlannedRegion) -> list[str]:
        names = set(planned.nodes) | set(planned.copies)
        return sorted(names | self._inner_numbers(names, self._rank[planned.id]), key=self._position.__getitem__)

    def _required(self, region_inputs: Iterable[str]) -> frozenset[str]:
        """Values that must exist outside regions: graph outputs, region inputs, and what numbers and returned views are
        computed from."""
        required = set(self._graph_outputs) | set(region_inputs) | self._numbers_outside
        for node in reversed(self._numbers):
            if node.name in required:
                required.update(node.references())
        return frozenset(required)

    def _cut(
        self, planned: PlannedRegion, ordered: Sequence[str], inputs: tuple[str, ...], required: frozenset[str]
    ) -> BoundRegion:
        outputs = tuple(name for name in planned.nodes if name in required and self._is_tensor(name))
        piece = self._piece(ordered, inputs, outputs)
        region_inputs = tuple(RegionInput(name, value_meta(self._val(name)), self._role(name)) for name in inputs)
        region_outputs = tuple(self._output(name, inputs) for name in outputs)
        try:
            text = write_region_text(
                piece, region_inputs, region_outputs, self._graph.phase, planned.matches, self._graph.deterministic
            )
            key = region_key(text)
        except RegionTextError as error:
            # Subgraphs and lifted tensors have no text: such a region is never shared or stored.
            text, key = str(error), f"{LOCAL_KEY}{next(_local_keys)}"
        views = tuple(self._graph.view(name) for name in ordered if name in self._owned)
        region = Region(
            id=f"{self._graph.id}/{planned.id}",
            key=key,
            text=text,
            phase=self._graph.phase,
            graph_module=piece,
            inputs=region_inputs,
            outputs=region_outputs,
            views=views,
            matches=planned.matches,
            sources=tuple(dict.fromkeys(view.node.source for view in views if view.node.source)),
            deterministic=self._graph.deterministic,
        )
        entangled = bool(entangled_writes(self._graph, (*planned.nodes, *planned.copies)))
        return BoundRegion(planned, region, inputs, outputs, tuple(ordered), entangled)

    def _val(self, name: str) -> object:
        return self._nodes[name].meta.get("val")

    def _role(self, name: str) -> InputRole:
        given = self._graph.input_by_name.get(name)
        if given is not None:
            return given.role
        is_tensor = isinstance(self._val(name), torch.Tensor)
        return InputRole.ACTIVATION if is_tensor else InputRole.SYMBOL

    def _inner_numbers(self, members: set[str], rank: int) -> set[str]:
        """Nodes of numbers that depend on the region's own values: they are computed inside, where it runs in time."""
        inner: set[str] = set()
        for node in self._numbers:
            if self._order.allows(node.name, rank) and any(
                name in members or name in inner for name in node.references()
            ):
                inner.add(node.name)
        if not inner:
            return inner
        needed: set[str] = set()
        for name in reversed([name for name in self._nodes if name in inner or name in members]):
            users = {user.name for user in self._nodes[name].users}
            if name in inner and users & (members | needed):
                needed.add(name)
        return needed

    def _inputs(self, ordered: Sequence[str]) -> tuple[str, ...]:
        members = frozenset(ordered)
        names: dict[str, None] = {}
        for name in ordered:
            for source in self._nodes[name].all_input_nodes:
                if source.name not in members and not is_subgraph(source):
                    names[source.name] = None
        return (*names, *self._inputs_with_sizes(ordered, tuple(names)))

    def _symbols_of_inputs(self) -> dict[sympy.Expr, str]:
        """The graph's input that shows a symbol: a number rather than a tensor."""
        found: dict[sympy.Expr, str] = {}
        inputs = self._module.graph.find_nodes(op="placeholder")
        for node in sorted(inputs, key=lambda node: isinstance(node.meta.get("val"), torch.Tensor)):
            for size in _plain_sizes(node.meta.get("val")):
                found.setdefault(size, node.name)
        return found

    def _inputs_with_sizes(self, ordered: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
        """Inputs of the graph that show what sizes of a region are made of, where its own inputs do not."""
        shown = {size for name in inputs for size in _plain_sizes(self._val(name))}
        used = set[sympy.Symbol]().union(*(_symbols(self._val(name)) for name in (*inputs, *ordered)))
        missing = sorted(used - shown, key=str)
        return tuple(dict.fromkeys(self._shown_by[symbol] for symbol in missing if symbol in self._shown_by))

    def _is_tensor(self, name: str) -> bool:
        return isinstance(self._val(name), torch.Tensor)

    def _output(self, name: str, inputs: Sequence[str]) -> RegionOutput:
        meta = value_meta(self._val(name))
        assert isinstance(meta, TensorMeta)
        root = self._root.get(name, name)
        alias = next((index for index, source in enumerate(inputs) if self._root.get(source, source) == root), None)
        return RegionOutput(name, meta, alias, name in self._graph_outputs or self._strides_matter(name))

    def _strides_matter(self, name: str) -> bool:
        owners = (self._owned.get(user.name) for user in self._nodes[name].users)
        return any(owner is not None and owner.id in self._stride_readers for owner in owners)

    def _regions_reading_strides(self, plan: Plan, exact_input_backends: frozenset[str]) -> frozenset[str]:
        """Regions in which some result depends on the strides of what comes in, at any distance."""
        return frozenset(
            region.id
            for region in plan.regions
            if region.backend in exact_input_backends
            or any(
                node.wants_traced_strides or node.tags & _READS_STRIDES
                for node in map(self._graph.node_by_name.__getitem__, region.nodes)
            )
        )

    def _piece(self, ordered: Iterable[str], inputs: Sequence[str], outputs: Sequence[str]) -> torch.fx.GraphModule:
        piece = torch.fx.Graph()
        copied: dict[torch.fx.Node, torch.fx.Node] = {}
        for name in inputs:
            placeholder = piece.placeholder(name)
            placeholder.meta = dict(self._nodes[name].meta)
            copied[self._nodes[name]] = placeholder
        for name in ordered:
            node = self._nodes[name]
            for source in node.all_input_nodes:
                if is_subgraph(source) and source not in copied:
                    copied[source] = piece.node_copy(source, copied.__getitem__)
            copied[node] = piece.node_copy(node, copied.__getitem__)
        piece.output(tuple(copied[self._nodes[name]] for name in outputs))
        return graph_module_of(self._module, piece)


def _plain_sizes(value: object) -> list[sympy.Expr]:
    """Of a number or a tensor's shape: symbols that stand alone, so that their value can be read."""
    numbers = list(value.shape) if isinstance(value, torch.Tensor) else [value]
    found = [symbolic_expression(number) for number in numbers if isinstance(number, torch.SymInt)]
    return [expression for expression in found if expression.is_Symbol]


def _symbols(value: object) -> set[sympy.Symbol]:
    """What a number, or the sizes and strides of tensors, are made of."""
    found: set[sympy.Symbol] = set()
    for item in as_tuple(value):
        dense = isinstance(item, torch.Tensor) and item.layout is torch.strided
        numbers = [*item.shape, *item.stride()] if dense else [item]
        for number in numbers:
            if isinstance(number, torch.SymInt):
                found |= symbolic_expression(number).free_symbols
    return found
