"""A piece: a region with the values of one call, and smaller pieces that are made of it.

Place: below ``reduction`` and ``shrink``, which choose; above ``graph.regions``, which cuts. Input: a region, values.
Output: another piece that does a part of it.
Invariants: what a piece takes over of another one's graph reads what it read there: an intermediate value that is an
input now has the value that eager computed. Patterns that the region was planned with stay where all of their nodes do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.fx

from mixbackend.certify.cases import Recorder, copy_of, groups_of
from mixbackend.certify.variants import copies
from mixbackend.contracts import InputRole, OpGraph, OpTag, Plan, PlannedRegion, Region
from mixbackend.graph.copies import copy_module
from mixbackend.graph.describe import PlaceholderRole, describe
from mixbackend.graph.regions import cut_regions


@dataclass(frozen=True, eq=False)
class Piece:
    """See the module's docstring.

    Attributes:
        region: what a backend compiles.
        inputs: of one call; integers for numbers.
    """

    region: Region
    inputs: tuple[Any, ...]

    @cached_property
    def graph(self) -> OpGraph:
        """The region's graph, described."""
        return described(self.region.graph_module, self.region, self.roles)

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """Names of its nodes, each with those that take its results apart."""
        return groups_of(self.graph)

    @property
    def ops(self) -> int:
        """How many operators it has."""
        return len(self.groups)

    @property
    def roles(self) -> dict[str, InputRole]:
        """Of its inputs."""
        return {item.name: item.role for item in self.region.inputs}

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """What eager computes at each node."""
        recorder = Recorder(self.region.graph_module)
        with torch.no_grad(), torch.random.fork_rng([]):
            torch.default_generator.manual_seed(0)
            recorder.run(*copies(self.inputs))
        return recorder.seen

    @property
    def writes(self) -> bool:
        """Whether what it computes depends on more than values: it writes, or draws random numbers."""
        return any(view.node.tags & {OpTag.MUTATES, OpTag.RANDOM} for view in self.region.views)

    def only(self, kept: Sequence[int]) -> Piece:
        """The piece that has these groups of nodes alone; what they read of others are inputs."""
        names = [name for place in kept for name in self.groups[place]]
        others = [group for place, group in enumerate(self.groups) if place not in set(kept)]
        return cut(self.region, self.region.graph_module, self.roles, names, others, self.values)

    def returning(self, outputs: Sequence[str]) -> Piece:
        """The piece that returns these results alone, without what only others needed."""
        module = copy_module(self.region.graph_module)
        nodes = {node.name: node for node in module.graph.nodes}
        (output,) = module.graph.find_nodes(op="output")
        output.args = (tuple(nodes[name] for name in outputs),)
        for node in reversed(module.graph.nodes):
            if node.op == "call_function" and not node.users:
                module.graph.erase_node(node)
        return whole(self.region, module, self.roles, self.values)


def described(module: torch.fx.GraphModule, region: Region, roles: Mapping[str, InputRole]) -> OpGraph:
    """The graph of a region, or one made of it."""
    given = {name: PlaceholderRole(role) for name, role in roles.items()}
    return describe(module, region.phase, "minified", given)


def whole(
    region: Region, module: torch.fx.GraphModule, roles: Mapping[str, InputRole], values: Mapping[str, Any]
) -> Piece:
    """A graph that was made of a region's as a piece.

    Args:
        region: what it was made of.
        module: the graph; its nodes are called as the region's.
        roles: of its inputs.
        values: of its inputs, by name.
    """
    names = [name for group in groups_of(described(module, region, roles)) for name in group]
    return cut(region, module, roles, names, (), values)


def cut(
    region: Region,
    module: torch.fx.GraphModule,
    roles: Mapping[str, InputRole],
    names: Sequence[str],
    others: Sequence[Sequence[str]],
    values: Mapping[str, Any],
) -> Piece:
    """A part of a graph as a piece; see ``whole``.

    Args:
        names: of the nodes that stay.
        others: of those that do not, in groups.
    """
    graph = described(module, region, roles)
    place = {node.name: number for number, node in enumerate(graph.nodes)}
    own = tuple(sorted(names, key=place.__getitem__))
    matches = tuple(match for match in region.matches if set(match[1]) <= set(own))
    regions = [PlannedRegion("kept", "none", own, matches=matches)]
    regions += [PlannedRegion(f"r{number}", "none", tuple(group)) for number, group in enumerate(others)]
    plan = Plan(graph.id, graph.phase, graph.dynamic, tuple(regions))
    bound = cut_regions(module, graph, plan, views_inside=True)[0]
    made = replace(bound.region, id=region.id)
    return Piece(made, tuple(copy_of(values[name]) for name in bound.inputs))
