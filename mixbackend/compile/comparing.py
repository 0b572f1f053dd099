"""First calls of one captured graph: what is held against what, for the whole graph and in each range of its sizes.

Place: between ``compile.compiling`` and ``select.comparison``.
Input: a captured graph, what is known of it, where it may be compared. Output: what runs.
At the first call of all the graph is compared as its caller sees it; in another range of sizes, what was placed for the
range is, with constants bound. What was found holds in that range alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mixbackend.compile.compiled_graphs import CompiledGraphs, Placed
from mixbackend.compile.first_call import AtFirstCall
from mixbackend.compile.placed import PlacedGraph
from mixbackend.compile.regimes import Measured, PlaceAs
from mixbackend.execute.run_function import Run
from mixbackend.graph.copies import copy_module
from mixbackend.graph.identity import Captured
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.environment import Environment
from mixbackend.plan.regime_search import Regime
from mixbackend.select.by_range import RangedDecisions
from mixbackend.select.comparison import Candidate, Comparison, Ground, ground_of
from mixbackend.select.decision import UNTUNED, Decision

Build = Callable[[Captured, Measured, list[Placed]], Run]
"""Builds a graph as was measured, and appends what is placed for it."""


@dataclass(frozen=True)
class FirstCalls:
    """See the module's docstring.

    Attributes:
        captured: the graph.
        ranged: what is known of it.
        environment: where events are told.
        graphs: told of those that will not run.
        build: builds a rival, or raises.
    """

    captured: Captured
    ranged: RangedDecisions
    environment: Environment
    graphs: CompiledGraphs
    build: Build

    def of_graph(self, ground: Ground, measured: Measured, build: Build) -> Run:
        """The graph as it is placed by estimates; held against what may be quicker at the first call, if anything.

        Args:
            ground: where it may be compared.
            measured: which ranges of sizes there are.
            build: builds the graph, in eager if it cannot be built.
        """
        home = self._candidate(DEFAULT, measured, build)
        # Where nobody can say which sizes a decision would be for, there is none.
        unknown = self.captured.dynamic and measured.ladder is None
        rivals = () if home.placed is None or unknown else ground.rivals(home.placed, self.environment.planner)
        if not rivals:
            return home.run

        def rival(choice: Choice) -> Candidate:
            return self._candidate(choice, measured, self.build)

        compare = self._comparison(ground, home, rivals, rival, self.ranged.home)
        return AtFirstCall(lambda values: compare(values).run, ground.give_back)

    def in_range(self, regime: Regime, home: PlacedGraph, place: PlaceAs, values: Sequence[Any]) -> PlacedGraph:
        """The quickest placement for a range of sizes whose first call has these values; see ``regimes.Compare``."""
        # What was to be measured and could not be is placed by estimates.
        captured = replace(self.captured, module=home.layout.module, id=home.graph.id)
        ground = None if self.ranged.measuring else ground_of(captured, self.environment)
        rivals = () if ground is None else ground.rivals(home, self.environment.planner)
        if ground is None or not rivals:
            return home

        def rival(choice: Choice) -> Candidate:
            placed = place(Decision(choice))
            return Candidate(choice, placed, [placed])

        compare = self._comparison(ground, Candidate(DEFAULT, home, [home]), rivals, rival, regime)
        return compare(values).placed or home

    def _comparison(
        self,
        ground: Ground,
        home: Candidate,
        rivals: Sequence[Choice],
        build: Callable[[Choice], Candidate],
        regime: Regime | None,
    ) -> Comparison:
        name = self.captured.id if home.placed is None else home.placed.graph.id
        show, sizes = partial(self.ranged.show, regime), self.ranged.ends(regime)
        return Comparison(name, self.environment, ground, home, rivals, build, self.graphs.forget, show, sizes)

    def _candidate(self, choice: Choice, measured: Measured, build: Build) -> Candidate:
        """The graph built as a choice says, from a copy of its module."""
        placed: list[Placed] = []
        copy = replace(self.captured, module=copy_module(self.captured.module))
        decision = UNTUNED if choice == DEFAULT else Decision(choice)
        return Candidate(choice, build(copy, replace(measured, decision=decision), placed), placed)
