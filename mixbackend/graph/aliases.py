"""Aliases: which outputs of a graph share memory with its inputs or with one another, as in eager.

Place: ``returned_views`` is called by ``graph.regions`` and ``execute.schedule``; ``expected_sharing`` by
``compile.executable``, which compares its first results; ``sharing_with_outputs`` by passes that would
make two results one, or a result a constant.
A user may write into what a graph returned, so that a result which is a view must be one: of the very input, or of the
very memory of another result. Regions hand over fresh memory; therefore such views are no region's outputs. They are
made by torch, in the stitched function, of what they are views of.
Invariants: what leaves a graph alone has memory of its own, whatever it is a view of inside. Gradients and what is
saved for the backward are values: nothing writes into them, and they may be copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import OpGraph, OpNode, OpTag, Phase
from mixbackend.contracts.describe_op import as_tuple, describe_op
from mixbackend.contracts.torch_compat import saved_positions


def moves_nothing(node: OpNode) -> bool:
    """Whether it only says where values lie: a view, which shares its input's memory."""
    return (OpTag.VIEW in node.tags or node.op == "getitem") and OpTag.MUTATES not in node.tags


def only_views(graph: OpGraph, names: Iterable[str]) -> bool:
    """Whether these nodes are views and numbers alone: nothing happens where they run."""
    nodes = (graph.node_by_name[name] for name in names)
    return all(moves_nothing(node) or node.is_symbolic for node in nodes)


@dataclass(frozen=True)
class ReturnedViews:
    """Results that are views of inputs or of what other results share.

    Attributes:
        nodes: names of these results, and of the views between them and what they are views of.
        outputs: what regions or inputs must give for the results of the graph: the results, or what they are views of.
    """

    nodes: frozenset[str]
    outputs: frozenset[str]


def returned_views(graph: OpGraph) -> ReturnedViews:
    """Find the views among the results of a graph that a caller may write into."""
    returned = dict.fromkeys(name for name in graph.outputs if name is not None)
    writable = () if graph.phase == "backward" else [name for name in returned if name not in graph.saved]
    chains = {name: _chain(graph, name) for name in writable}
    users = Counter(root for _, root in chains.values())
    nodes: set[str] = set()
    outputs = set(returned)
    for name, (views, root) in chains.items():
        if views and (root in graph.input_by_name or users[root] > 1):
            nodes.update(views)
            outputs.discard(name)
            outputs.add(root)
    return ReturnedViews(frozenset(nodes), frozenset(outputs))


def _chain(graph: OpGraph, name: str) -> tuple[list[str], str]:
    """The views that lead to a value, last first, and what they are views of."""
    views: list[str] = []
    while name in graph.node_by_name and moves_nothing(graph.node_by_name[name]):
        node = graph.node_by_name[name]
        source = node.aliased()
        if source is None or (node.op == "getitem" and not _is_view(graph, source)):
            break
        views.append(name)
        name = source
    return views, name


def _is_view(graph: OpGraph, name: str) -> bool:
    """Whether what is taken apart are views, not results of one operator that lie apart."""
    return name in graph.node_by_name and OpTag.VIEW in graph.node_by_name[name].tags


def sharing_with_outputs(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The outputs of a graph, and what they are views of."""
    output = next(iter(graph.find_nodes(op="output")))
    found: set[torch.fx.Node] = set()
    waiting = list(output.all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        # An op that takes a tuple apart, or may return its input as it is, shares memory too.
        if node.op == "call_function" and _may_share(node):
            waiting += node.all_input_nodes
    return found


def _may_share(node: torch.fx.Node) -> bool:
    described = describe_op(node)
    return described.op == "getitem" or OpTag.VIEW in described.tags


Storage = int
"""Address of some memory; 0 where there is none."""


@dataclass(frozen=True)
class Sharing:
    """Which results of a captured graph are to share memory with which others.

    Attributes:
        inputs: for each result, the position of the input that it is a view of; ``None`` for other memory.
        groups: for each result, the number of its memory; ``None`` where it is a view of an input, or has none.
        values: positions of results of which nothing is expected: gradients, and what is saved for the backward.
    """

    inputs: tuple[int | None, ...]
    groups: tuple[int | None, ...]
    values: frozenset[int]

    def problems(self, arguments: Sequence[Any], results: Sequence[Any]) -> dict[int, str]:
        """Positions of results that share what they should not, or do not share what they should, with the reason."""
        given = [_storage(value) for value in arguments]
        taken = {storage: f"input {place}" for place, storage in enumerate(given) if storage}
        first: dict[int, Storage] = {}
        found: dict[int, str] = {}
        for place, (source, group, result) in enumerate(zip(self.inputs, self.groups, results, strict=True)):
            storage = _storage(result)
            if not storage or place in self.values:
                continue
            if source is not None and given[source] == storage:
                continue
            if source is None and group in first and first[group] == storage:
                continue
            expected = f"input {source}" if source is not None else "other results" if group in first else ""
            if expected:
                found[place] = f"is no view of {expected}"
            elif storage in taken:
                found[place] = f"shares memory with {taken[storage]}"
            taken.setdefault(storage, f"result {place}")
            if group is not None:
                first.setdefault(group, storage)
        return found


def expected_sharing(captured: torch.fx.GraphModule, phase: Phase) -> Sharing:
    """What the results of a captured graph share: views their input's memory, others as their fake tensors do."""
    placeholders = captured.graph.find_nodes(op="placeholder")
    given = {_storage(node.meta.get("val")): place for place, node in enumerate(placeholders)}
    (output,) = captured.graph.find_nodes(op="output")
    # The fake result of an op may have been stated anew since, and no more be what its views are views of.
    returned = [
        _viewed(item).meta.get("val") if isinstance(item, torch.fx.Node) else None for item in as_tuple(output.args[0])
    ]
    storages = [_storage(value) for value in returned]
    numbers = {storage: number for number, storage in enumerate(dict.fromkeys(storages))}
    saved = frozenset(range(len(returned))) if phase == "backward" else saved_positions(output)
    return Sharing(
        tuple(given.get(storage) if storage else None for storage in storages),
        tuple(numbers[storage] if storage and storage not in given else None for storage in storages),
        saved,
    )


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a view of, at any distance."""
    while node.op == "call_function":
        described = describe_op(node)
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if source is None or not moves_nothing(described):
            break
        if described.op == "getitem" and (source.op != "call_function" or OpTag.VIEW not in describe_op(source).tags):
            break
        node = source
    return node


def _storage(value: object) -> Storage:
    """Where a tensor's memory lies; of a fake one, what stands for that."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return 0
    try:
        storage = value.untyped_storage()
        size = storage.nbytes()
        if isinstance(size, int) and size == 0:
            return 0
        return int(storage._cdata if storage.device.type == "meta" else storage.data_ptr())
    except (NotImplementedError, RuntimeError):
        # Some subclasses have none, and so have zeros that torch never wrote.
        return 0
