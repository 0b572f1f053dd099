"""Traced graphs: what torch hands over, as a value, and as text that another process reads back.

Place: between ``graph.capture`` and ``compile``; the text is what torch's cache of AOTAutograd keeps of a graph.
Input: a graph of AOTAutograd's with what is known of its inputs and outputs. Output: ``Traced``, or its
``TracedText``.
Invariants: what is read back is compiled as what was written would be: equal nodes, names, metas, roles, results, saved
values, memory that is shared and source lines; ``Captured.identity`` of both has one key. Nothing is unpickled.
Non-goals: graphs without a text form (subgraphs, large lifted tensors, symbolic floats), which no cache keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import InputRole, Phase, RegionTextError
from mixbackend.contracts.describe_op import as_tuple
from mixbackend.contracts.region_text import read_graph_text, write_graph_text
from mixbackend.contracts.torch_compat import mark_saved, saved_positions, walk_metadata
from mixbackend.graph.aliases import Sharing, expected_sharing
from mixbackend.graph.describe import PlaceholderRole, innermost_frame

Origin = tuple[str, str, str]
"""Of an op: path and class of its module, and the innermost line of the user's code."""


@dataclass(frozen=True)
class Traced:
    """A graph of AOTAutograd's.

    Attributes:
        module: the graph.
        phase: which graph of the model it is.
        roles: of its placeholders, by name.
        outputs: how many of its outputs callers see, ``None`` for all of them.
        sharing: which of its results share memory, where its fake values no longer say so.
    """

    module: torch.fx.GraphModule
    phase: Phase
    roles: Mapping[str, PlaceholderRole]
    outputs: int | None
    sharing: Sharing | None = None

    def text(self) -> TracedText:
        """Its text.

        Raises:
            RegionTextError: it has none; names the node.
        """
        graph = self.module.graph
        nodes = [node for node in graph.nodes if node.op != "output"]
        places = {node: place for place, node in enumerate(nodes)}
        (output,) = graph.find_nodes(op="output")
        origins = [_origin(node) for node in nodes]
        known = {origin: number for number, origin in enumerate(dict.fromkeys(origins))}
        return TracedText(
            write_graph_text(self.module, {name: role.role for name, role in self.roles.items()}, self.phase),
            tuple(node.name for node in nodes),
            tuple(known),
            tuple(known[origin] for origin in origins),
            tuple((name, role.role.value, role.source) for name, role in self.roles.items()),
            tuple(_place(item, places) for item in as_tuple(output.args[0])),
            tuple(sorted(saved_positions(output))),
            self.phase,
            self.outputs,
            self.sharing or expected_sharing(self.module, self.phase),
        )


@dataclass(frozen=True)
class TracedText:
    """A traced graph in plain values.

    Attributes:
        text: its nodes, as ``write_graph_text`` has them.
        names: of the nodes.
        origins: where in the model ops come from, each once.
        origin_of: for each node, the place of its origin among those.
        roles: of placeholders: name, role, name of the weight.
        returned: for each output the place of its node, ``None`` for none.
        saved: places of outputs that are kept for the backward.
        phase, outputs, sharing: as ``Traced`` has them.
    """

    text: str
    names: tuple[str, ...]
    origins: tuple[Origin, ...]
    origin_of: tuple[int, ...]
    roles: tuple[tuple[str, str, str], ...]
    returned: tuple[int | None, ...]
    saved: tuple[int, ...]
    phase: Phase
    outputs: int | None
    sharing: Sharing

    def read(self) -> Traced:
        """The graph.

        Raises:
            RegionTextError: the text names an operator that is not registered here.
        """
        module, phase = read_graph_text(self.text, self.names)
        graph = module.graph
        nodes = list(graph.nodes)
        (output,) = graph.find_nodes(op="output")
        for node, number in zip(nodes, self.origin_of, strict=False):
            _set_origin(node, self.origins[number])
        output.args = (tuple(None if place is None else nodes[place] for place in self.returned),)
        mark_saved(output, frozenset(self.saved), len(self.returned))
        module.recompile()
        roles = {name: PlaceholderRole(InputRole(role), source) for name, role, source in self.roles}
        return Traced(module, phase, roles, self.outputs, self.sharing)


def _place(item: Any, places: Mapping[torch.fx.Node, int]) -> int | None:
    if item is None:
        return None
    if not isinstance(item, torch.fx.Node):
        raise RegionTextError(f"a result is the number {item}, which no node computes")
    return places[item]


def _origin(node: torch.fx.Node) -> Origin:
    if node.op != "call_function":
        return "", "", ""
    entries: Sequence[tuple[str, Any]] = list(walk_metadata(node))
    path, kind = entries[-1] if entries else ("", "")
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return str(path), name, innermost_frame(node)


def _set_origin(node: torch.fx.Node, origin: Origin) -> None:
    path, kind, frame = origin
    if path or kind:
        node.meta["nn_module_stack"] = {path: (path, kind)}
    if frame:
        node.meta["stack_trace"] = frame
