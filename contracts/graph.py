"""The op graph: a captured graph as one immutable value.

Place: second stage of the pipeline, between capture (torch.fx) and judging.
Input: made by ``mixbackend.graph.describe``. Output: read by the partitioner, the cost model and the report.
Invariants: nodes are in a legal execution order; every reference names an earlier node or an input; ``effects`` are
extra order edges (first before second) that data edges do not imply: one chain over random, effectful and collective
ops, and from every reader of a storage to each write into it.
Non-goals: execution. The executable graph stays with the pipeline; regions are cut out of that one by node name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from mixbackend.contracts.opclass import op_class_of
from mixbackend.contracts.ops import InputRole, InputView, OpNode, OpTag, OpView, Phase, ValueMeta
from mixbackend.contracts.tensors import TensorMeta


@dataclass(frozen=True, slots=True)
class GraphInput:
    """A placeholder of the graph.

    Attributes:
        name: unique among inputs and nodes.
        meta: tensor meta, or a symbolic or plain number.
        role: parameter, activation, ...
        source: fully qualified name of a parameter or buffer, ``""`` otherwise.
    """

    name: str
    meta: ValueMeta
    role: InputRole
    source: str = ""


@dataclass(frozen=True)
class OpGraph:
    """A graph of ops.

    Attributes:
        id: stable name in reports, for instance ``inference-0``.
        phase: inference, forward or backward.
        inputs, nodes: see above.
        outputs: names of the values that the graph returns, in order; ``None`` for a position that returns nothing.
        effects: (first, second) pairs of node names.
        deterministic: whether ``torch.use_deterministic_algorithms`` holds for it: equal inputs must give bitwise equal
            results, every time.
        saved: names of outputs that are returned for the backward graph alone.
    """

    id: str
    phase: Phase
    inputs: tuple[GraphInput, ...]
    nodes: tuple[OpNode, ...]
    outputs: tuple[str | None, ...]
    effects: tuple[tuple[str, str], ...] = ()
    deterministic: bool = False
    saved: frozenset[str] = frozenset()

    @cached_property
    def node_by_name(self) -> dict[str, OpNode]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def input_by_name(self) -> dict[str, GraphInput]:
        """Inputs by name."""
        return {item.name: item for item in self.inputs}

    @cached_property
    def placed_nodes(self) -> tuple[OpNode, ...]:
        """The nodes that a plan must place: all but those that compute only numbers."""
        return tuple(node for node in self.nodes if not node.is_symbolic)

    @cached_property
    def device_type(self) -> str:
        """The accelerator that the graph works on, ``cpu`` if none."""
        return accelerator([item.meta for item in self.inputs] + [meta for node in self.nodes for meta in node.outputs])

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """For each input and node, the names of the nodes that read it, in graph order, each once."""
        readers: dict[str, list[str]] = {item.name: [] for item in self.inputs}
        readers.update({node.name: [] for node in self.nodes})
        for node in self.nodes:
            for name in dict.fromkeys(node.references()):
                readers[name].append(node.name)
        return {name: tuple(nodes) for name, nodes in readers.items()}

    @cached_property
    def storage_of(self) -> Mapping[str, str]:
        """For each node that may share its storage with an earlier value, the first value that has it."""
        first: dict[str, str] = {}
        for node in self.nodes:
            source = node.aliased()
            if source is not None:
                first[node.name] = first.get(source, source)
        return first

    @property
    def dynamic(self) -> bool:
        """Whether any tensor has a symbolic size."""
        metas = [item.meta for item in self.inputs] + [meta for node in self.nodes for meta in node.outputs]
        return any(isinstance(meta, TensorMeta) and meta.dynamic for meta in metas)

    def value(self, name: str) -> InputView:
        """A value as an op sees it; a view of a weight is a weight, and of a constant a constant."""
        source = self.input_by_name.get(name)
        if source is not None:
            return InputView(name, source.meta, source.role)
        node = self.node_by_name[name]
        role = self._weight_views.get(name, InputRole.ACTIVATION)
        return InputView(name, node.outputs[0] if node.outputs else None, role)

    @cached_property
    def _weight_views(self) -> Mapping[str, InputRole]:
        """Nodes that are views of weights, with the role of these: their values are as well known."""
        roles = {item.name: item.role for item in self.inputs if item.role.is_weight}
        views: dict[str, InputRole] = {}
        for node in self.nodes if roles else ():
            source = node.aliased() if OpTag.MUTATES not in node.tags else None
            role = None if source is None else roles.get(source) or views.get(source)
            if role is not None:
                views[node.name] = role
        return views

    def view(self, name: str) -> OpView:
        """One node as a backend sees it."""
        node = self.node_by_name[name]
        inputs = tuple(self.value(reference) for reference in dict.fromkeys(node.references()))
        return OpView(node, inputs, self.phase, op_class_of(node.op), self.deterministic)

    def __str__(self) -> str:
        lines = [f"graph {self.id} phase={self.phase}{' deterministic' if self.deterministic else ''}"]
        lines += [f"  input %{item.name}: {item.meta} {item.role.value} {item.source}".rstrip() for item in self.inputs]
        lines += [f"  {node}" for node in self.nodes]
        lines += [f"  order %{first} before %{second}" for first, second in self.effects]
        lines.append("  return " + ", ".join("none" if name is None else f"%{name}" for name in self.outputs))
        return "\n".join(lines)


def accelerator(metas: Iterable[ValueMeta]) -> str:
    """The first accelerator that values are on, ``cpu`` if none."""
    types = {meta.device.type for meta in metas if isinstance(meta, TensorMeta)}
    return next(iter(sorted(types - {"cpu", "meta"})), "cpu")
