"""What Dynamo did before it called: graph breaks and recompilations, as events for the report.

Place: beside ``mixture``. Input: one of Dynamo's graphs. Output: events.
A break keeps regions from going across it, and what the code behind it needs is written to memory and read again: that
is its price, told in bytes. The functions between cost Python, which nothing here knows.
"""

from __future__ import annotations

from pathlib import PurePath

import torch
import torch.fx

from mixbackend.contracts.torch_compat import GraphBreak, graph_break_of, recompile_reason
from mixbackend.reporting import Event


def frame_events(graph_module: torch.fx.GraphModule) -> list[Event]:
    """Of the frame that the graph is of."""
    events = []
    ended, recompiled = graph_break_of(graph_module), recompile_reason()
    if recompiled:
        events.append(Event("recompile", "", "", "", f"torch compiles a frame anew: {recompiled}"))
    if ended is not None:
        events.append(Event("graph_break", "", "", "", _told(ended, graph_module)))
    return events


def _told(ended: GraphBreak, graph_module: torch.fx.GraphModule) -> str:
    place = f"{'/'.join(PurePath(ended.file).parts[-2:])}:{ended.line} in {ended.function}" if ended.file else "a place"
    why = ended.explanation or ended.reason
    hint = f"; torch's hint: {ended.hint}" if ended.hint else ""
    return f"a graph ends at {place}, and no region goes across: {why}; {_handed_over(graph_module)}{hint}"


def _handed_over(graph_module: torch.fx.GraphModule) -> str:
    """What the graph computes for the code behind it."""
    (output,) = graph_module.graph.find_nodes(op="output")
    values = [node.meta.get("example_value") for node in output.all_input_nodes if node.op != "placeholder"]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    count = "1 tensor is" if len(tensors) == 1 else f"{len(tensors)} tensors are"
    if not tensors or any(map(_symbolic, tensors)):
        return f"{count} handed over"
    return f"{count} handed over, {_bytes(sum(value.numel() * value.element_size() for value in tensors))}"


def _symbolic(value: torch.Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in value.shape)


def _bytes(size: int) -> str:
    return f"{size} bytes" if size < 1e4 else f"{size / 1e3:.0f} kB" if size < 1e6 else f"{size / 1e6:.1f} MB"
