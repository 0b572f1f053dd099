"""Faults: what went wrong in the regions of one program while they ran.

Place: left by executors in the middle of a call, read by the holder of the program once the call is over.
Input: a region, and what happened. Output: values in their order, taken from the left.
Invariants: nothing here raises into a call or calls back; code that failed is left by all executors that share it at
once, see ``region_code``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mixbackend.contracts import Backend, Region
from mixbackend.execute.region_errors import FailureKind


@dataclass(frozen=True)
class Failed:
    """The code of a region failed.

    Attributes:
        region: the region; eager answers its calls from now on.
        backend: that made the code.
        kind: whether it raised or was wrong.
        text: in words.
        is_news: whether the code had not failed before, here or elsewhere.
    """

    region: Region
    backend: Backend
    kind: FailureKind
    text: str
    is_news: bool


@dataclass(frozen=True)
class Unverified:
    """A check of a region could not be made, or proved nothing; ``text`` says why."""

    region: Region
    backend: Backend
    text: str


Faults = deque[Failed | Unverified]
"""Not looked at yet. Several threads may add and take."""


def region_name(region: Region) -> str:
    """Of a region within its graph."""
    return region.id.rpartition("/")[2]
