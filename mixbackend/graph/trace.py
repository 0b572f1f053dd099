"""Trace: a plain torch function as a captured graph, without Dynamo.

Place: beside capture; used by probes, tests, and code that wants a region from a few lines.
Input: a function on tensors and example inputs. Output: an ATen graph with fake values, its ``OpGraph``, or one region.
Non-goals: autograd and mutation; those need AOTAutograd, see ``graph.capture``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.contracts import OpGraph, Phase, Region
from mixbackend.contracts.describe_op import as_tuple
from mixbackend.graph.describe import PlaceholderRole, describe
from mixbackend.graph.normalize import normalize
from mixbackend.graph.regions import whole_region


def trace_graph(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    dynamic: bool = False,
    phase: Phase = "inference",
    graph_id: str = "traced",
    roles: dict[int, PlaceholderRole] | None = None,
) -> tuple[torch.fx.GraphModule, OpGraph]:
    """Trace a function to ATen ops.

    Args:
        function: plain torch code; returns a tensor or a tuple of tensors.
        inputs: its arguments; only their metas matter.
        dynamic: make every size over 1 symbolic.
        roles: by position of the argument; others are activations.
    """
    flat = lambda *arguments: as_tuple(function(*arguments))  # noqa: E731 - make_fx wants a fresh callable
    with torch.no_grad():
        graph_module = make_fx(flat, tracing_mode="symbolic" if dynamic else "fake")(*inputs)
    graph_module.graph.eliminate_dead_code()
    normalize(graph_module)
    names = [node.name for node in graph_module.graph.find_nodes(op="placeholder")]
    by_name = {names[index]: role for index, role in (roles or {}).items()}
    return graph_module, describe(graph_module, phase, graph_id, by_name)


def trace_region(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    dynamic: bool = False,
    phase: Phase = "inference",
    roles: dict[int, PlaceholderRole] | None = None,
) -> Region:
    """Trace a function to one region; see ``trace_graph``."""
    return whole_region(*trace_graph(function, inputs, dynamic=dynamic, phase=phase, roles=roles))
