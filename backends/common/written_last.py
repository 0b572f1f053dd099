"""Written last: a region of ops that write into its inputs, as one that computes everything and then writes.

Place: below ``retrace``, for compilers that take functional graphs with their writes at the end, as AOTAutograd makes
them. Input: a region's graph, run on fake tensors inside ``make_fx``. Output: what its outputs are; the trace ends in
one ``copy_`` for each input that is written into.
Invariants: what reads an input after a write reads the value that was written; of what is refused by
``writing.refuse_writes`` nothing comes here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from mixbackend.backends.common.repeats import RepeatsCopied

aten = torch.ops.aten

_VALUES = {
    aten.copy_.default: aten.copy.default,
    aten.index_copy_.default: aten.index_copy.default,
    aten.index_put_.default: aten.index_put.default,
}
"""Operators of ``contracts.WRITING``, and those that give what they write."""


class WrittenLast(RepeatsCopied):
    """Runs a graph inside ``make_fx``; see the module's docstring."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self._roots: dict[torch.fx.Node, torch.fx.Node] = {}
        self._written: dict[torch.fx.Node, tuple[torch.Tensor, torch.Tensor]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one op; one that writes gives its value to the names of what it writes into."""
        if n.op == "call_function" and n.target in _VALUES:
            return self._renew(n)
        result = super().run_node(n)
        if n.op == "output":
            for memory, value in self._written.values():
                aten.copy_.default(memory, value)
        return result

    def _renew(self, node: torch.fx.Node) -> torch.Tensor:
        target = node.args[0]
        assert isinstance(target, torch.fx.Node)
        root = self._roots.get(target, target)
        arguments, keywords = self.fetch_args_kwargs_from_env(node)
        with self._set_current_node(node):
            value: torch.Tensor = self.call_function(_VALUES[node.target], arguments, keywords)  # type: ignore[index]
        if root.op == "placeholder":
            memory = self._written[root][0] if root in self._written else self.env[root]
            self._written[root] = memory, value
        for name in (root, *(name for name, source in self._roots.items() if source is root)):
            self.env[name] = value
        self._roots[node] = root
        return value
