"""Identity: what makes two captures the same graph, whatever machine and versions they meet.

Place: between capture and what remembers something about a graph: the tuner adds what identifies the machine, the
lock file compares that part by part.
Input: a captured graph. Output: its canonical text, and a key of that.
Invariants: equal operators, arguments, edges, dtypes, strides, symbols and roles of inputs give equal keys; names of
nodes, modules and hints of sizes do not matter. The captured graph is only read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.fx

from mixbackend.contracts import InputRole, OpGraph, Phase, Region, RegionTextError
from mixbackend.contracts.region import LOCAL_KEY
from mixbackend.graph.aliases import Sharing, expected_sharing
from mixbackend.graph.copies import copy_with_subgraphs
from mixbackend.graph.describe import PlaceholderRole, describe
from mixbackend.graph.normalize import normalize
from mixbackend.graph.regions import whole_region

_INPUT = re.compile(r"^%[0-9]+ = input\((\w+), (.*)\)$", re.MULTILINE)
_TOLD = frozenset(role.value for role in (InputRole.ACTIVATION, InputRole.TANGENT, InputRole.SYMBOL))


@dataclass(frozen=True)
class Captured:
    """A graph as it was captured; nothing writes to it here.

    Attributes:
        module: the graph.
        phase: which graph of the model it is.
        roles: of its placeholders.
        id: its name in reports.
        sharing: which of its results share memory, where its fake values do not say so.
    """

    module: torch.fx.GraphModule
    phase: Phase
    roles: dict[str, PlaceholderRole]
    id: str
    sharing: Sharing | None = None

    @classmethod
    def of_region(cls, region: Region, graph_id: str) -> Captured:
        """A graph that was read from its canonical text."""
        roles = {item.name: PlaceholderRole(item.role) for item in region.inputs}
        return cls(region.graph_module, region.phase, roles, graph_id)

    @property
    def dynamic(self) -> bool:
        """Whether it has symbolic sizes."""
        values = [node.meta.get("val") for node in self.module.graph.find_nodes(op="placeholder")]
        sizes = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
        return any(isinstance(item, torch.SymInt) for item in (*values, *sizes))

    @property
    def expected_sharing(self) -> Sharing:
        """Which of its results are to share memory, with what."""
        return self.sharing or expected_sharing(self.module, self.phase)

    @cached_property
    def identity(self) -> Identity:
        """What makes it the same graph elsewhere; to be asked before the module is handed on.

        Raises:
            RegionTextError: the graph has no text.
        """
        return _identify(self)


@dataclass(frozen=True)
class Identity:
    """See the module's docstring.

    Attributes:
        graph: the normalised graph, with its weights as inputs.
        text: canonical text of the whole graph.
        inputs: positions, among the graph's inputs, of those that the text takes, in its order.
        key: of the text.
    """

    graph: OpGraph
    text: str
    inputs: tuple[int, ...]
    key: str

    @property
    def passed(self) -> tuple[str, ...]:
        """What the caller passes beside weights and saved values, in words of the canonical text."""
        return tuple(f"{role} {meta}" for role, meta in _INPUT.findall(self.text) if role in _TOLD)


def _identify(captured: Captured) -> Identity:
    module = copy_with_subgraphs(captured.module)
    normalize(module)
    graph = describe(module, captured.phase, captured.id, captured.roles)
    region = whole_region(module, graph)
    if region.key.startswith(LOCAL_KEY):
        raise RegionTextError(what=region.text)
    places = {node.name: place for place, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    lifted = [item.name for item in region.inputs if item.name not in places]
    if lifted:
        raise RegionTextError(what=f"the graph holds tensors that are no inputs: {', '.join(lifted)}")
    return Identity(graph, region.text, tuple(places[item.name] for item in region.inputs), region.key)
