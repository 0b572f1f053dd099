"""Taking constants out of an inference graph: the one way in which what is placed is made of what was captured.

Place: between capture and placement, for ``compile.weight_bindings``, which runs the result, and ``select``, which
measures it.
Input: a captured graph and which of its weights are constants (``execute.weights.constant_weights``). Output: the graph
split by them.
Invariants: equal captures give equal graphs to both, node for node: a decision about one holds for the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.fx

from mixbackend.graph.constants.split import Split, split_constants
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.normalize import normalize
from mixbackend.graph.passes import RunPass, constant_passes, run_pass, run_passes


def take_constants_out(
    graph_module: torch.fx.GraphModule,
    roles: Mapping[str, PlaceholderRole],
    constants: frozenset[str],
    run: RunPass = run_pass,
) -> Split:
    """Split a captured inference graph by its constants; the graph is changed.

    What is left is normal once more: freed factories may have become equal ops.

    Args:
        graph_module: the graph.
        roles: of its placeholders.
        constants: names of those that are constants.
        run: runs each graph pass.
    """
    normalize(graph_module, run)
    run_passes(constant_passes(constants), graph_module, run)
    split = split_constants(graph_module, roles, constants)
    normalize(split.main, run)
    return split
