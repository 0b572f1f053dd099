"""The partitioner: where every op of a graph should run.

Place: between describing the graph and compiling regions. ``place`` is the way in; imports the contract only.
It is loaded at first use: a process that takes its plans from the database needs the form of plans alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixbackend.partitioner.placement import place

__all__ = ["place"]


def __getattr__(name: str) -> Any:
    if name != "place":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mixbackend.partitioner.placement import place

    return place
