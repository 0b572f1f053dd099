"""Prepared: what of a captured graph is placed: a normal copy of it, or what is left when constants are split off.

Place: first step of ``compile.driver``; ``select`` prepares the same way what it measures.
Input: a captured graph, and which of its weights are constants. Output: ``Prepared``.
Invariants: the captured graph is only read; equal captures give equal graphs, node for node: a decision about one holds
for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from mixbackend.contracts import Phase
from mixbackend.graph.constants.split import Split
from mixbackend.graph.constants.taken_out import take_constants_out
from mixbackend.graph.copies import copy_module
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.identity import Captured
from mixbackend.graph.normalize import normalize
from mixbackend.graph.passes import RunPass, run_pass


@dataclass(frozen=True)
class Prepared:
    """See the module's docstring.

    Attributes:
        module: what is placed; nothing writes to it.
        phase, roles: of it, as ``describe`` takes them.
        split: how it was split off; ``None`` where all weights are inputs.
    """

    module: torch.fx.GraphModule
    phase: Phase
    roles: Mapping[str, PlaceholderRole]
    split: Split | None = None

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the placeholders that take constants, in their order; they are the last ones."""
        if self.split is None:
            return ()
        names = [node.name for node in self.module.graph.find_nodes(op="placeholder")]
        return tuple(names[len(self.split.others) :])

    def whole(self, values: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
        """The inputs of the captured graph for those of the placed one.

        Args:
            values: inputs of the placed graph.
            weights: what its constants were made of.
        """
        if self.split is None:
            return list(values)
        given = dict(zip(self.split.others, values, strict=False))
        given.update(zip(self.split.weights, weights, strict=True))
        return [given[place] for place in sorted(given)]


def prepare(captured: Captured, constants: frozenset[str], run: RunPass = run_pass) -> Prepared:
    """Prepare a captured graph.

    Args:
        captured: the graph.
        constants: names of the placeholders that become constants.
        run: runs each graph pass.
    """
    module = copy_module(captured.module)
    if not constants:
        normalize(module, run)
        return Prepared(module, captured.phase, captured.roles)
    split = take_constants_out(module, captured.roles, constants, run)
    return Prepared(split.main, captured.phase, split.roles, split)
