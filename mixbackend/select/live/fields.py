"""Fields: which graphs are tried in live calls, and what is tried against them, by the type of their device.

Place: between ``compile.first_calls`` and the challengers of processors and GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.plan.planner import Planner
from mixbackend.select.live.challengers import Challenger
from mixbackend.select.runnable import Runnable


@dataclass(frozen=True)
class Field:
    """Of one type of device.

    Attributes:
        worth_trying_others: takes a placed graph and the names of its inputs.
        why_not_now: takes the values of a call as well.
        challengers: takes a placed graph and what places others.
    """

    worth_trying_others: Callable[[Runnable, Sequence[str]], bool]
    why_not_now: Callable[[Runnable, Sequence[str], Sequence[Any]], str]
    challengers: Callable[[Runnable, Planner], tuple[Challenger, ...]]


def field_of(baseline: Runnable) -> Field | None:
    """The field of a graph, loaded now; ``None`` on devices that nothing is tried on."""
    device = baseline.graph.device_type
    if device == "cpu":
        from mixbackend.select.live import processor_challengers as here

        return Field(here.worth_trying_others, here.why_not_now, here.processor_challengers)
    if device == "cuda":
        from mixbackend.select.live import gpu_challengers as there

        return Field(there.worth_trying_others, there.why_not_now, there.gpu_challengers)
    return None
