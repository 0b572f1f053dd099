"""Taking constants out of an inference graph: the one way in which what is placed is made of what was captured.

Place: between capture and placement, for ``compile.frozen``, which runs the result, and ``tuning``, which measures it.
Input: a captured graph. Output: which weights are constants; the graph split by them.
Invariants: equal captures give equal graphs to both, node for node: a decision about one holds for the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.fx

from mixbackend.contracts import Phase
from mixbackend.execute.weights.watch import why_unwatchable
from mixbackend.graph.constants.factories import free_factories
from mixbackend.graph.constants.fold import fold_batch_norms
from mixbackend.graph.constants.split import Split, constant_placeholders, split_constants
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.normalize import normalize


def constant_weights(
    graph_module: torch.fx.GraphModule, phase: Phase, roles: Mapping[str, PlaceholderRole], weights: str
) -> tuple[frozenset[str], str]:
    """Weights that may be constants: in inference, where changes can be seen.

    Args:
        graph_module: as it was captured.
        phase: which graph of the model it is.
        roles: of its placeholders.
        weights: what the configuration says.

    Returns:
        Their names; and why none of them is constant although the configuration would let them, if so.
    """
    if phase != "inference" or weights == "live":
        return frozenset(), ""
    constants = constant_placeholders(graph_module, roles)
    reason = why_unwatchable() if constants else ""
    return (frozenset(), reason) if reason else (constants, "")


def take_constants_out(
    graph_module: torch.fx.GraphModule, roles: Mapping[str, PlaceholderRole], constants: frozenset[str]
) -> Split:
    """Split a captured inference graph by its constants; the graph is changed.

    What is left is normal once more: freed factories may have become equal ops.
    """
    normalize(graph_module)
    fold_batch_norms(graph_module, constants)
    free_factories(graph_module)
    split = split_constants(graph_module, roles, constants)
    normalize(split.main)
    return split
