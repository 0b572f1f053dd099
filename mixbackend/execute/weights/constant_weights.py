"""Constant weights: which weights of a captured graph are compiled as constants.

Place: between capture and ``graph.constants.taken_out``, for ``compile`` and ``select`` alike.
Input: a captured graph and what the configuration says. Output: names of placeholders.
Invariants: in inference alone, and only where changes of weights can be seen (``watch``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.fx

from mixbackend.contracts import Phase
from mixbackend.execute.weights.watch import why_unwatchable
from mixbackend.graph.constants.split import constant_placeholders
from mixbackend.graph.describe import PlaceholderRole


def constant_weights(
    graph_module: torch.fx.GraphModule,
    phase: Phase,
    roles: Mapping[str, PlaceholderRole],
    weights: str,
    owned: bool = False,
) -> tuple[frozenset[str], str]:
    """Weights that may be constants: in inference, where changes can be seen.

    Args:
        graph_module: as it was captured.
        phase: which graph of the model it is.
        roles: of its placeholders.
        weights: what the configuration says.
        owned: whether nothing changes them, see ``owned``.

    Returns:
        Their names; and why none of them is constant although the configuration would let them, if so.
    """
    if phase != "inference" or weights == "live":
        return frozenset(), ""
    constants = constant_placeholders(graph_module, roles)
    reason = why_unwatchable() if constants and not owned else ""
    return (frozenset(), reason) if reason else (constants, "")
