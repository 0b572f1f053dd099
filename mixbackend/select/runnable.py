"""Runnable: what comparing knows of a compiled graph.

Place: the form of ``compile.program_entry`` that ``select`` takes: what it is, where it is placed, how it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mixbackend.contracts import OpGraph, Plan
from mixbackend.plan.layout_choice import LaidOutGraph


class Runnable(Protocol):
    """See the module's docstring."""

    @property
    def graph(self) -> OpGraph:
        """The graph that it runs."""
        ...

    @property
    def plan(self) -> Plan:
        """Where everything is."""
        ...

    @property
    def layout(self) -> LaidOutGraph:
        """The graph in the layout that runs, and what the other one was planned to cost."""
        ...

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        ...

    def rehearse(self, on: bool) -> None:
        """Record CUDA graphs for a trial from now on, or for good again."""
        ...

    def release(self) -> None:
        """It will not be called again."""
        ...
