"""Split: the part of a graph that depends on constants alone, and the rest.

Place: first step of ``compile.weight_bindings``, after capture and normalisation, before anything is placed.
Input: an inference graph, and which of its placeholders are constants. Output: two graphs: ``constants`` computes
values from the weights, once; ``main`` takes the other inputs and those values.
Invariants: the two graphs one after the other compute what the graph computed; nothing random, written to, dynamic or
of undefined content becomes a constant; values that are quicker made than read stay in ``main``, as do quantised
weights as wider numbers; graph outputs that would be constants stay there too, so that every call returns fresh memory.
Non-goals: watching weights; compiling.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import InputRole, OpTag
from mixbackend.contracts.describe_op import describe_op
from mixbackend.contracts.torch_compat import graph_module_of
from mixbackend.graph.aliases import sharing_with_outputs
from mixbackend.graph.describe import PlaceholderRole

LARGEST_BYTES = 64 << 20
"""A value larger than this and larger than what it is made of is made again in every call."""

_QUANTISED = frozenset({torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2})
"""Types of weights that are stored small, so that kernels read few bytes."""

_UNFIT = frozenset(
    {
        *(OpTag.RANDOM, OpTag.MUTATES, OpTag.COLLECTIVE, OpTag.HIGHER_ORDER),
        *(OpTag.DATA_DEPENDENT, OpTag.UNINITIALIZED, OpTag.EFFECT),
    }
)


@dataclass(frozen=True)
class Split:
    """See the module's docstring.

    Attributes:
        main: takes the other inputs, in their order, then the values of ``constants``, in their order.
        constants: takes the weights, in the order of ``weights``.
        roles: of the placeholders of ``main``.
        weights: positions of constants among the inputs of the whole graph.
        others: positions of the other inputs.
    """

    main: torch.fx.GraphModule
    constants: torch.fx.GraphModule
    roles: dict[str, PlaceholderRole]
    weights: tuple[int, ...]
    others: tuple[int, ...]


def split_constants(
    graph_module: torch.fx.GraphModule, roles: Mapping[str, PlaceholderRole], weights: frozenset[str]
) -> Split:
    """Split a captured inference graph; the graph is only read.

    Args:
        graph_module: normalised, with fake values in ``meta["val"]``.
        roles: of its placeholders.
        weights: names of those that are constants, see ``constant_placeholders``.
    """
    return _Splitter(graph_module, roles, weights).split()


def constant_placeholders(graph_module: torch.fx.GraphModule, roles: Mapping[str, PlaceholderRole]) -> frozenset[str]:
    """Names of the placeholders that are weights, static, and written by no op."""
    written = _written(graph_module.graph.nodes)
    return frozenset(
        node.name
        for node in graph_module.graph.find_nodes(op="placeholder")
        if node.name in roles and roles[node.name].role.is_weight and node.name not in written and _is_static(node)
    )


class _Splitter:
    def __init__(
        self, graph_module: torch.fx.GraphModule, roles: Mapping[str, PlaceholderRole], weights: frozenset[str]
    ) -> None:
        self._module = graph_module
        self._nodes = list(graph_module.graph.nodes)
        self._roles = roles
        self._weights = weights
        self._known: set[str] = set()
        """Nodes that depend on constants alone."""
        self._cheap: set[str] = set()
        """Those of them that are made of no tensor: filled memory, counters, and views of such."""

    def split(self) -> Split:
        for node in self._nodes:
            self._classify(node)
        border = self._border()
        placeholders = [node for node in self._nodes if node.op == "placeholder"]
        weights = tuple(place for place, node in enumerate(placeholders) if node.name in self._weights)
        others = tuple(place for place, node in enumerate(placeholders) if node.name not in self._weights)
        roles = {name: role for name, role in self._roles.items() if name not in self._weights}
        roles.update({node.name: PlaceholderRole(InputRole.CONSTANT, self._source(node)) for node in border})
        return Split(self._main(border), self._constants(border), roles, weights, others)

    def _classify(self, node: torch.fx.Node) -> None:
        lifted = node.op == "get_attr" and isinstance(_value(node), torch.Tensor)
        if lifted or node.name in self._weights:
            self._known.add(node.name)
        elif node.op == "call_function" and self._is_constant(node):
            self._known.add(node.name)
            if self._is_cheap(node):
                self._cheap.add(node.name)

    def _is_constant(self, node: torch.fx.Node) -> bool:
        if any(source.name not in self._known for source in node.all_input_nodes):
            return False
        if node.target is operator.getitem:
            return True
        tags = describe_op(node).tags
        if tags & _UNFIT or not _is_static(node):
            return False
        own = sum(map(_bytes, _tensors(_value(node))))
        sources = [value for source in node.all_input_nodes for value in _tensors(_value(source))]
        read = sum(map(_bytes, sources))
        most = read if any(map(_is_quantised, sources)) else max(read, LARGEST_BYTES)
        return OpTag.VIEW in tags or own <= most

    def _is_cheap(self, node: torch.fx.Node) -> bool:
        """Compilers see through counters and filled memory, and read no memory for them."""
        if not node.all_input_nodes:
            return True
        return OpTag.VIEW in describe_op(node).tags and all(
            source.name in self._cheap for source in node.all_input_nodes
        )

    def _border(self) -> list[torch.fx.Node]:
        """Constants that the rest of the graph reads; what is cheap, or returned as it is or as a view, stays there."""
        shared = sharing_with_outputs(self._module.graph)
        self._known -= {node.name for node in shared if node.op == "call_function"}
        # From the end: what stays in the rest makes the rest read what it is made of.
        for node in reversed(self._nodes):
            if self._is_border(node) and not (node.name not in self._cheap and isinstance(_value(node), torch.Tensor)):
                self._known.discard(node.name)
        return [node for node in self._nodes if self._is_border(node)]

    def _is_border(self, node: torch.fx.Node) -> bool:
        return node.name in self._known and any(user.name not in self._known for user in node.users)

    def _main(self, border: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self._nodes:
            if node.op == "placeholder" and node.name not in self._weights:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        for node in border:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in self._nodes:
            if node not in copies and node.name not in self._known:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        return graph_module_of(self._module, graph)

    def _constants(self, border: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
        needed = _closure(border)
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self._nodes:
            if node.name in self._weights or (node in needed and node.op != "placeholder"):
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in border))
        return graph_module_of(self._module, graph)

    def _source(self, node: torch.fx.Node) -> str:
        """Qualified names of the weights that a constant is made of."""
        if node.op == "placeholder":
            return self._roles[node.name].source
        made_of = _closure([node])
        names = [item.name for item in self._nodes if item in made_of and item.name in self._weights]
        return " + ".join(self._roles[name].source for name in names) or str(node.target)


def _closure(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    found: set[torch.fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _value(node: torch.fx.Node) -> Any:
    return node.meta.get("val")


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]


def _bytes(value: torch.Tensor) -> int:
    """Bytes of a tensor of known sizes; ``nbytes`` refuses fake tensors with sizes that were symbols once."""
    return math.prod(value.shape) * value.itemsize


def _is_quantised(value: torch.Tensor) -> bool:
    """Whether a constant is a matrix of numbers of 8 bits, or a view of one; tables of few numbers are no weights."""
    return value.dtype in _QUANTISED and sum(size > 1 for size in value.shape) >= 2


def _is_static(node: torch.fx.Node) -> bool:
    tensors = _tensors(_value(node))
    sizes = [size for tensor in tensors for size in (*tensor.shape, *tensor.stride(), tensor.storage_offset())]
    return bool(tensors) and all(isinstance(size, int) for size in sizes)


def _written(nodes: Iterable[torch.fx.Node]) -> set[str]:
    """Values with a storage that some op writes into."""
    root: dict[str, str] = {}
    found: set[str] = set()
    for node in nodes:
        root[node.name] = node.name
        if node.op != "call_function":
            continue
        described = describe_op(node)
        alias = described.aliased()
        if alias is not None:
            root[node.name] = root.get(alias, alias)
        if described.tags & {OpTag.MUTATES, OpTag.EFFECT, OpTag.HIGHER_ORDER}:
            # What an op of unknown effect reads may be what it writes.
            names = described.references()[:1] if OpTag.MUTATES in described.tags else described.references()
            found.update(root.get(name, name) for name in names)
    return found
