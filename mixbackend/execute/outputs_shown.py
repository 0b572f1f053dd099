"""Outputs shown: a region run by eager, each output shown as soon as it is there and let go after its last reader.

Place: below ``execute.verify``, for regions with results that are too large to have them twice. Input: a region that
writes into none of its inputs, and the inputs of one call. Output: none; the outputs are shown one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import Region


class OutputsShown(torch.fx.Interpreter):
    """See the module's docstring.

    Args:
        look: called with the place and the value of each output, which is let go after its last reader.
    """

    def __init__(self, region: Region, look: Callable[[int, torch.Tensor], None]) -> None:
        super().__init__(region.graph_module)
        self._look = look
        (output,) = self.graph.find_nodes(op="output")
        self._places: dict[torch.fx.Node, list[int]] = {}
        for place, node in enumerate(output.args[0]):
            self._places.setdefault(node, []).append(place)
        self._done: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        order = {node: index for index, node in enumerate(self.graph.nodes)}
        for node in self._places:
            readers = [user for user in node.users if user.op != "output"]
            self._done.setdefault(max([node, *readers], key=order.__getitem__), []).append(node)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one op, and let go of outputs that nothing reads any more."""
        if n.op == "output":
            return None
        value = super().run_node(n)
        for place in self._places.get(n, ()):
            self._look(place, value)
        for node in self._done.get(n, ()):
            if node is n:
                return None
            self.env[node] = None
        return value
