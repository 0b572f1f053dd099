"""Graph modules with Python code that is written when they are first run.

Place: a part of the door; see ``contracts.torch_compat``. Most graphs of a compilation are rewritten, described or cut
and never run: to write their code takes longer than most of what is done to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx


@contextlib.contextmanager
def written_when_run() -> Iterator[None]:
    """What torch traces or splits meanwhile is such a graph module, as while inductor compiles."""
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with _use_lazy_graph_module(True):
        yield


@contextlib.contextmanager
def written_at_once() -> Iterator[None]:
    """What torch traces or splits meanwhile is an ordinary graph module, also while other code compiles lazily."""
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with _use_lazy_graph_module(False):
        yield


def graph_module_of(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A graph with what it names of ``root``."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(root, graph)


def forward_of(graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
    """What runs a graph again and again, written now."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    _LazyGraphModule.force_recompile(graph_module)
    forward: Callable[..., Any] = graph_module.forward
    return forward
