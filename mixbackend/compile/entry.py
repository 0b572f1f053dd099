"""An entry: what has one cell of an executable's table, and runs one range of sizes with one set of constants.

Place: in the table of ``compile.sized_graph.Row``, called by ``compile.executable``. Either it is a program
(``program_entry``), or it holds the cell until it is known which program is to run there (``placeholder_entry``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from mixbackend.compile.program import Program
from mixbackend.contracts import OpGraph, Plan
from mixbackend.execute.bindings import BackgroundRebind
from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.plan.choice import Choice
from mixbackend.plan.environment import Environment
from mixbackend.plan.layout_choice import LaidOutGraph, named_layout
from mixbackend.reporting import GraphRecord


class Entry(ABC):
    """See the module's docstring.

    Args:
        environment: where its programs are planned and compiled, and where events go.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    @abstractmethod
    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""

    @property
    @abstractmethod
    def program(self) -> Program:
        """What runs."""

    @property
    @abstractmethod
    def champion(self) -> Entry:
        """The entry of the program that runs."""

    @property
    @abstractmethod
    def settled(self) -> bool:
        """Whether its program changes by repairs alone."""

    @abstractmethod
    def stop_trying(self) -> None:
        """What runs stays, whatever else was to be tried; quick, may be said in the middle of a call."""

    @abstractmethod
    def bind(self, constants: Mapping[str, torch.Tensor], rebind: BackgroundRebind | None = None) -> int:
        """Run code for these values of the constant inputs from now on.

        Args:
            constants: by name of the placeholder; what is passed for them in later calls must be these very tensors.
            rebind: where given, code that takes long to make is made in the background; eager runs these regions
                meanwhile.

        Returns:
            How many regions eager runs meanwhile.
        """

    @abstractmethod
    def release(self) -> None:
        """It will not be called again: what was made of constants goes, what reports say stays."""

    @abstractmethod
    def time_regions(self) -> None:
        """Time the next calls of every region, for ``record``."""

    @abstractmethod
    def record(self, *, advice: bool = False) -> GraphRecord:
        """What the report says about this graph; with ``advice``, also which refusals cost most."""

    @property
    def graph(self) -> OpGraph:
        """The graph that runs."""
        return self.program.graph

    @property
    def layout(self) -> LaidOutGraph:
        """The graph in the layout that runs, and what the other one was planned to cost."""
        return self.program.proposal.layout

    @property
    def plan(self) -> Plan:
        """Where everything is now."""
        return self.program.plan

    def as_choice(self, choice: Choice) -> Choice:
        """A choice with the plan that it came to here, for later processes."""
        layout = choice.layout or named_layout(self.layout.record)
        return replace(choice, plan=canonical_plan(self.plan, self.graph), layout=layout, name=str(choice))
