"""Nodes of the trace that goes on, and the fake tensors that they stand for.

Place: a part of the door; see ``contracts.torch_compat``. Used inside a function that ``make_fx`` traces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx


class Trace:
    """The trace that goes on.

    Raises:
        ValueError: nothing is traced.
    """

    def __init__(self) -> None:
        from torch.fx.experimental.proxy_tensor import get_proxy_mode

        mode = get_proxy_mode()
        if mode is None:
            raise ValueError("nothing is traced: call inside a function that make_fx traces")
        self._tracer: Any = mode.tracer

    @property
    def graph(self) -> torch.fx.Graph:
        """What has been traced up to now."""
        graph: torch.fx.Graph = self._tracer.graph
        return graph

    def node_of(self, value: torch.Tensor) -> torch.fx.Node | None:
        """The node that a fake tensor comes from; ``None`` for constants and for what was not traced."""
        from torch.fx.experimental.proxy_tensor import get_proxy_slot

        found = get_proxy_slot(value, self._tracer, None)
        if found is None or found.constant is not None:
            return None
        node: torch.fx.Node = found.proxy.node
        return node

    def copied(self, node: torch.fx.Node, change: Callable[[torch.fx.Node], torch.fx.Node]) -> torch.fx.Node:
        """A node once more at the end of the graph, on other inputs; it tells where it comes from as new nodes do.

        Args:
            node: of this graph.
            change: what becomes of each of its inputs.
        """
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), change)
        copy: torch.fx.Node = self._tracer.create_node(node.op, node.target, *arguments)
        copy.meta.update({key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta})
        return copy

    def stands_for(self, node: torch.fx.Node, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A fake tensor, made without being traced, that comes from a node from now on."""
        from torch.fx.experimental.proxy_tensor import _ProxyTensor, disable_proxy_modes_tracing, set_proxy_slot

        with disable_proxy_modes_tracing():
            value = make()
        set_proxy_slot(value, self._tracer, _ProxyTensor(torch.fx.Proxy(node, self._tracer), None))
        node.meta["val"] = value
        return value
