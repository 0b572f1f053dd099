"""Steps: when the program of a graph may change.

Place: asked by whoever runs calls, before ``selection`` chooses. Input: what the process and the graph are doing.
Output: ``Hold``, or nothing where the program may change.
Method: a program changes between steps only. A forward that awaits its backward, and a call made during a backward (a
checkpoint's recomputation runs what its forward ran), keep the program that ran last; so do calls while CUDA graphs
are captured. In a process group of more than one rank, under deterministic algorithms and with selecting switched off
nothing is tried at all.
Invariants: nothing is changed here. A forward whose results are dropped awaits nothing: who holds it says so.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from enum import Enum

import torch

from mixbackend.contracts.torch_compat import deterministic_asked, graph_task

SWITCH = "MIXBACKEND_SELECT"
"""Set to ``off``, nothing is tried in any call of the process."""


class Hold(Enum):
    """Why the program of a graph may not change in a call."""

    OFF = "selecting is switched off"
    DETERMINISTIC = "torch is told to use deterministic algorithms"
    RANKS = "the process is one of several ranks, which must run one program"
    CAPTURING = "CUDA graphs are being captured"
    IN_BACKWARD = "the call is part of a backward"
    AWAITING = "a forward awaits its backward"

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
        awaiting: forwards of the graph whose backward has not run.
    """

    off: bool = False
    deterministic: bool = False
    ranks: int = 1
    capturing: bool = False
    in_backward: bool = False
    awaiting: int = 0


def situation(off: bool = False, awaiting: int = 0) -> Situation:
    """As it is now.

    Args:
        off: by the configuration.
        awaiting: see ``Situation``.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return Situation(
        off=off or os.environ.get(SWITCH, "").lower() == "off",
        deterministic=deterministic_asked(),
        ranks=torch.distributed.get_world_size() if distributed else 1,
        capturing=torch.cuda.is_available() and torch.cuda.is_current_stream_capturing(),
        in_backward=graph_task() is not None,
        awaiting=awaiting,
    )


def why_not(now: Situation) -> Hold | None:
    """Why the program may not change in this call; what holds for good comes first."""
    held = (
        (Hold.OFF, now.off),
        (Hold.DETERMINISTIC, now.deterministic),
        (Hold.RANKS, now.ranks > 1),
        (Hold.CAPTURING, now.capturing),
        (Hold.IN_BACKWARD, now.in_backward),
        (Hold.AWAITING, now.awaiting > 0),
    )
    return next((hold for hold, holds in held if holds), None)


class Awaiting:
    """Forwards of one graph whose backward has not run; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: set[int] = set()
        self._next = 0

    def __len__(self) -> int:
        return len(self._steps)

    def forward(self) -> int:
        """A forward has begun; its number is to be told when its backward has ended, or never will."""
        with self._lock:
            self._next += 1
            self._steps.add(self._next)
            return self._next

    def done(self, step: int) -> None:
        """The backward of this forward has ended, or what it saved is gone; told twice, it counts once."""
        with self._lock:
            self._steps.discard(step)
