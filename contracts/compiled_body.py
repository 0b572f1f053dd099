"""A compiled body: what stands for a subgraph of a higher-order op once it is placed and compiled by itself.

Place: made by ``compile.driver``, an attribute of the graph that holds the op; called by torch's own implementation of
the op, which evaluates conditions and counts turns.
Input of a call: the operands. Output: what the subgraph returns: a tuple, or a value alone where it was traced so.
Invariants: what runs sees operands that lie as they were traced: slices of a scan, or what a loop begins with, may lie
otherwise, and are copied then. What the subgraph was traced as stays readable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Union

import sympy
import torch
import torch.fx

from mixbackend.contracts.torch_compat import graph_module_of, is_higher_order, size_expression


class CompiledBody(torch.nn.Module):
    """See the module's docstring.

    Args:
        traced: the subgraph.
        run: takes the list of operands, which it empties.
        name: of its graph in reports.
        estimated_s: seconds of one run as it is placed; ``None`` if they are not known.
    """

    def __init__(
        self,
        traced: torch.fx.GraphModule,
        run: Callable[[list[Any]], Sequence[Any]],
        name: str,
        estimated_s: float | None,
    ) -> None:
        super().__init__()
        self.traced, self.run, self.name, self.estimated_s = traced, run, name, estimated_s
        values = [node.meta.get("val") for node in traced.graph.find_nodes(op="placeholder")]
        self._layouts = [traced_layout(value) for value in values]
        (output,) = traced.graph.find_nodes(op="output")
        self._alone = not isinstance(output.args[0], (tuple, list))

    def forward(self, *operands: Any) -> Any:
        """Run the body once."""
        given = [
            value if layout is None or value.stride() == layout else laid(value, layout)
            for value, layout in zip(operands, self._layouts, strict=True)
        ]
        results = self.run(given)
        return results[0] if self._alone else tuple(results)


def with_direct_calls(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with calls of compiled bodies where ``invoke_subgraph`` names them; the graph itself where none is.

    Once autograd is passed, torch's implementation of that op is this call. Its dispatcher looks at every operand
    several times on the way. Ops that decide something (conditions, loops, scans) stay torch's.
    """
    if not any(_body_of(node, module) for node in module.graph.nodes):
        return module
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in module.graph.nodes:
        if body := _body_of(node, module):
            operands = torch.fx.map_arg(node.args[2:], copies.__getitem__)
            copies[node] = graph.call_module(body, operands)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph_module_of(module, graph)


def _body_of(node: torch.fx.Node, module: torch.fx.GraphModule) -> str:
    """What a node calls without conditions: the name of a compiled body, or nothing."""
    if not is_higher_order(node.target) or getattr(node.target, "__name__", "") != "invoke_subgraph":
        return ""
    name = str(node.args[0].target) if isinstance(node.args[0], torch.fx.Node) else ""
    return name if isinstance(getattr(module, name, None), CompiledBody) else ""


Layout = Union[tuple[int, ...], Literal["row-major"]]


def traced_layout(value: object) -> Layout | None:
    """How an operand lay when it was traced: its strides, or that it is row-major where they are symbols; ``None``
    where that cannot be said, or nothing depends on it."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    strides = tuple(step for step in value.stride() if isinstance(step, int))
    if len(strides) == value.dim():
        return strides
    steps, step = [], sympy.Integer(1)
    for size in reversed(value.shape):
        steps.append(step)
        step = step * size_expression(size)
    return "row-major" if [size_expression(step) for step in value.stride()] == steps[::-1] else None


def laid(value: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The same values in a layout, which counts where a dimension has more than one element."""
    if isinstance(layout, str) or value.numel() == 0:
        return value.contiguous()
    if all(size == 1 or old == new for size, old, new in zip(value.shape, value.stride(), layout, strict=True)):
        return value
    return torch.empty_strided(value.shape, layout, dtype=value.dtype, device=value.device).copy_(value)
