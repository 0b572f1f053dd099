"""Why Dynamo ended a graph where it did, and why it compiles a frame anew.

Place: a part of the door; see ``contracts.torch_compat``. Asked while a backend is called.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.fx


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """The end of a graph that is not the end of its function.

    Attributes:
        reason: Dynamo's, its first line.
        explanation: Dynamo's, ``""`` where it has none.
        hint: what Dynamo advises, ``""`` likewise.
        file, line: of the user's code.
        function: of the user's.
    """

    reason: str
    explanation: str
    hint: str
    file: str
    line: int
    function: str


def graph_break_of(graph_module: torch.fx.GraphModule) -> GraphBreak | None:
    """Where and why one of Dynamo's graphs was ended; ``None`` if its function is over there."""
    ended = getattr(graph_module, "compile_subgraph_reason", None)
    if ended is None or not ended.graph_break:
        return None
    first, *rest = [line.strip() for line in ended.reason.splitlines()] or [""]
    told = {label: text.strip() for label, _, text in (line.partition(":") for line in reversed(rest))}
    frame = ended.user_stack[-1] if ended.user_stack else None
    return GraphBreak(
        reason=first,
        explanation=told.get("Explanation", ""),
        hint=told.get("Hint", ""),
        file=frame.filename if frame is not None else "",
        line=(frame.lineno or 0) if frame is not None else 0,
        function=frame.name if frame is not None else "",
    )


def recompile_reason() -> str:
    """The guard that failed, so that the frame in hand is compiled anew; ``""`` if it is compiled first."""
    from torch._dynamo.utils import get_metrics_context

    context = get_metrics_context()
    found = context._metrics.get("recompile_reason") if context.in_progress() else None
    return "" if not found else " ".join(str(found).splitlines()[0].split())
