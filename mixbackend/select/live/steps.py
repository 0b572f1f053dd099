"""Steps: when the program of a graph may change.

Place: asked by the code that runs calls, before ``selection`` chooses. Input: what the process and the graph are
doing.
Output: ``Hold``, or nothing where the program may change.
Method: a program changes between steps only. A call that a backward makes of a graph that is no backward (a
checkpoint's recomputation runs what its forward ran) keeps the program that ran last; so do calls while CUDA graphs are
captured. In a process group of more than one rank, under deterministic algorithms and with selecting switched off
nothing is tried at all. A forward that a checkpoint was seen to run again tries nothing any more
(``is_recomputation``): otherwise its program might change while backwards of several steps are still to come.
Invariants: nothing is changed here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum

import torch

from mixbackend.contracts import Phase
from mixbackend.contracts.torch_compat import bisecting, deterministic_asked, graph_task

SWITCH = "MIXBACKEND_SELECT"
"""Set to ``off``, nothing is tried in any call of the process."""


class Hold(Enum):
    """Why the program of a graph may not change in a call."""

    OFF = "selecting is switched off"
    DETERMINISTIC = "torch is told to use deterministic algorithms"
    RANKS = "the process is one of several ranks, which must run one program"
    CAPTURING = "CUDA graphs are being captured"
    IN_BACKWARD = "the call is part of a backward"

    @property
    def for_good(self) -> bool:
        """Whether nothing is tried at all, rather than in this call."""
        return self in (Hold.OFF, Hold.DETERMINISTIC, Hold.RANKS)


@dataclass(frozen=True, slots=True)
class Situation:
    """What the process is doing during a call.

    Attributes:
        off: the user switched selecting off.
        deterministic: equal inputs must give equal bits.
        ranks: processes in the default group.
        capturing: work is recorded into CUDA graphs.
        in_backward: the call was made by a backward.
    """

    off: bool = False
    deterministic: bool = False
    ranks: int = 1
    capturing: bool = False
    in_backward: bool = False


def situation(off: bool = False, of_backward: bool = False) -> Situation:
    """As it is now.

    Args:
        off: by the configuration.
        of_backward: whether the graph is a backward: a backward then makes every call of it.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return Situation(
        off=off or os.environ.get(SWITCH, "").lower() == "off" or bisecting(),
        deterministic=deterministic_asked(),
        ranks=torch.distributed.get_world_size() if distributed else 1,
        capturing=torch.cuda.is_available() and torch.cuda.is_current_stream_capturing(),
        in_backward=not of_backward and graph_task() is not None,
    )


def is_recomputation(phase: Phase) -> bool:
    """Whether a call of a graph of this phase is part of a backward, and the graph is none; takes 0.1 us."""
    return phase != "backward" and graph_task() is not None


def why_not(now: Situation) -> Hold | None:
    """Why the program may not change in this call; what holds for good comes first."""
    held = (
        (Hold.OFF, now.off),
        (Hold.DETERMINISTIC, now.deterministic),
        (Hold.RANKS, now.ranks > 1),
        (Hold.CAPTURING, now.capturing),
        (Hold.IN_BACKWARD, now.in_backward),
    )
    return next((hold for hold, holds in held if holds), None)
