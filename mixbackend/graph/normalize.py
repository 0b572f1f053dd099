"""Normalise: the passes that every captured graph gets before it is described.

Place: between capture and describe. Input and output: the fx graph, changed in place (it is ours alone).
Invariants: values, shapes and strides as traced stay what they were, and so do the types of what eager returns.
"""

from __future__ import annotations

import torch.fx

from mixbackend.graph.passes import CAPTURED, RunPass, run_pass, run_passes


def normalize(graph_module: torch.fx.GraphModule, run: RunPass = run_pass) -> None:
    """Rewrite a captured graph in place; ``run`` runs each pass."""
    run_passes(CAPTURED, graph_module, run)
    graph_module.recompile()
