"""Regimes while they run: one graph with symbolic sizes, a plan per range of sizes, and which of them a call gets.

Place: around ``compile.placed``; ``Placer`` is asked by ``compile.compiling`` and ``compile.frozen`` instead of it.
Input: a captured graph. Output: ``PlacedGraph`` where one plan is good for all sizes, so that nothing stands between
the caller and it; else ``RegimeGraph``, which is called and bound alike.
A call reads its quantity (one number of its inputs, or a product of a few) and finds its range among at most three
bounds. The plan of the first call's range is built at once, the others when a size of theirs first comes; that call may
hold them against other plans (``Compare``).
Invariants: no guard is added; at most ``regime_search.MOST_REGIMES`` plans of a graph stay alive; all built plans are
bound to the same constants, which exist once. Regions that are equal in several plans are compiled once, by their key;
what a backend packs for itself out of constants exists once per plan that is built.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import sympy
import torch
import torch.fx

from mixbackend.compile.first_call import AtFirstCall
from mixbackend.compile.placed import PlacedGraph
from mixbackend.contracts import OpGraph, Phase, Plan, SymbolicSize, TensorMeta
from mixbackend.execute.bindings import Patience
from mixbackend.execute.run_function import Run
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.host.undisturbed import undisturbed
from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.environment import Environment
from mixbackend.plan.layout_choice import LayoutChoice, choose_layout, named_layout
from mixbackend.plan.planner import Planner
from mixbackend.plan.regime_search import Ladder, Regime, find_ladder
from mixbackend.reporting import Event, GraphRecord
from mixbackend.reporting.records import RegimeRecord
from mixbackend.select.decision import UNTUNED, Decision

logger = logging.getLogger("mixbackend")


Decide = Callable[[Regime, Sequence[Any], Choice], Decision]
"""What measuring says about a regime whose first call has these values, with the plan that runs other sizes among the
candidates; ``UNTUNED`` to go by estimates."""

PlaceAs = Callable[[Decision], PlacedGraph]
"""Places the graph for a regime, bound to its constants."""

Compare = Callable[[Regime, PlacedGraph, PlaceAs, Sequence[Any]], PlacedGraph]
"""The quickest way to run a regime whose first call has these values: as it is placed by estimates, or otherwise."""


def by_estimates(regime: Regime, placed: PlacedGraph, place: PlaceAs, values: Sequence[Any]) -> PlacedGraph:
    """Compares nothing."""
    return placed


@dataclass(frozen=True)
class Measured:
    """What was measured of a graph before it is placed.

    Attributes:
        decision: for the sizes of the first call.
        ladder: the regimes that it is one of, ``None`` if one plan is wanted for all sizes.
        decide: asked when another regime is built.
        compare: asked when another regime was placed by estimates.
    """

    decision: Decision = UNTUNED
    ladder: Ladder | None = None
    decide: Decide = lambda regime, values, other: UNTUNED
    compare: Compare = by_estimates


class Placer:
    """Places one captured graph, or several copies of it that differ in their constants.

    Args:
        phase: which graph of the model it is.
        roles: of its placeholders.
        environment: configuration, backends, costs and caches.
        measured: ``None`` if nothing was: estimates alone say which regimes there are.
    """

    def __init__(
        self,
        phase: Phase,
        roles: dict[str, PlaceholderRole],
        environment: Environment,
        measured: Measured | None = None,
    ) -> None:
        self.phase: Phase = phase
        self.roles = roles
        self.environment = environment
        self.measured = measured or Measured()
        self._ladders = [] if measured is None else [measured.ladder]

    def __call__(self, graph_module: torch.fx.GraphModule, graph_id: str) -> PlacedGraph | RegimeGraph:
        """Place a graph.

        Args:
            graph_module: owned from now on; has the same nodes at every call.
            graph_id: its name in reports.
        """
        decision = self.measured.decision
        placed = PlacedGraph(graph_module, self.phase, graph_id, self.roles, self.environment, decision)
        if not self._ladders:
            self._ladders.append(ladder_of(placed.layout, placed.plan, self.environment.planner))
        ladder = self._ladders[0]
        if ladder is None or len(ladder.regimes) == 1:
            return placed
        return RegimeGraph(placed, graph_module, ladder, self)


def ladder_of(layout: LayoutChoice, plan: Plan, planner: Planner) -> Ladder | None:
    """The regimes of a described graph, by estimates; ``None`` where no number of a call could decide."""
    graph = layout.graph
    if not graph.dynamic:
        return None
    places = _places(layout.module)
    return find_ladder(
        graph,
        plan,
        lambda symbol: _source(graph, places, symbol) is not None,
        planner.place,
        planner.reprice,
    )


class RegimeGraph:
    """See the module's docstring.

    Args:
        home: the graph as it is placed for the sizes of its first call.
        graph_module: the captured graph, normalised, in the layout that it was captured in.
        ladder: two regimes or more.
        placer: what the plans of all regimes share.
    """

    def __init__(self, home: PlacedGraph, graph_module: torch.fx.GraphModule, ladder: Ladder, placer: Placer) -> None:
        self._home = home
        self._module = graph_module
        self._ladder = ladder
        self._placer = placer
        self._lock = threading.RLock()
        self._constants: Mapping[str, torch.Tensor] | None = None
        self._built: list[PlacedGraph | None] = [None] * len(ladder.regimes)
        self._built[ladder.home] = home
        self._runs: list[Run] = [self._waiting(number) for number in range(len(ladder.regimes))]
        self._runs[ladder.home] = home
        self._bounds = [regime.last for regime in ladder.regimes if regime.last is not None]
        self._size = size_reader(home.layout.module, home.graph, ladder.quantity.symbols)

    @property
    def home(self) -> PlacedGraph:
        """The graph as it is placed for the sizes of its first call."""
        return self._home

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph with the plan for these sizes; empties the list."""
        return self._runs[bisect_left(self._bounds, self._size(arguments))](arguments)

    def bind(self, constants: Mapping[str, torch.Tensor], patience: Patience | None = None) -> int:
        """Run code for these values of the constant inputs from now on, at all sizes; see ``PlacedGraph.bind``."""
        with self._lock:
            self._constants = constants
            return sum(placed.bind(constants, patience) for placed in self._built if placed is not None)

    @property
    def rechecked_s(self) -> float:
        """Seconds that holding code for changed constants against eager has taken."""
        return sum(placed.rechecked_s for placed in self._built if placed is not None)

    def let_go(self) -> None:
        """Nobody will call it again; see ``PlacedGraph.let_go``."""
        self._constants = None
        for placed in self._built:
            if placed is not None:
                placed.let_go()

    def time_regions(self) -> None:
        """Time the next calls of every region, for ``record``."""
        for placed in self._built:
            if placed is not None:
                placed.time_regions()

    def record(self, *, advice: bool = False) -> GraphRecord:
        """What the report says: the plan of the first call's sizes, and all regimes."""
        rows = tuple(
            RegimeRecord(
                str(self._ladder.quantity),
                regime.first,
                regime.last,
                regime.size,
                placed is not None,
                GraphRecord(regime.graph, regime.plan) if placed is None else placed.record(),
            )
            for regime, placed in zip(self._ladder.regimes, self._built, strict=True)
        )
        return replace(self._home.record(advice=advice), regimes=rows)

    def _waiting(self, number: int) -> Run:
        return AtFirstCall(lambda values: self._build(number, values))

    def _build(self, number: int, values: Sequence[Any]) -> Run:
        """Build the plan of a regime; the first call's serves it too if that fails."""
        regime, environment = self._ladder.regimes[number], self._placer.environment
        try:
            with self._lock, undisturbed():
                placed = self._quickest(regime, values)
                self._built[number] = placed
                self._runs[number] = placed
        except Exception as error:
            if environment.config.on_failure == "raise":
                raise
            logger.debug("compiling for sizes %s failed", regime, exc_info=True)
            detail = f"sizes {regime} keep the plan of other sizes: {error}"
            environment.events.append(Event("fallback", self._home.graph.id, "", "", detail))
            self._runs[number] = self._home
        return self._runs[number]

    def _quickest(self, regime: Regime, values: Sequence[Any]) -> PlacedGraph:
        home, measured = self._home, self._placer.measured
        other = Choice(layout=named_layout(home.layout.record), plan=canonical_plan(home.plan, home.graph))
        decision = measured.decide(regime, values, other)
        place = functools.partial(self._placed, regime)
        placed = place(decision)
        return placed if decision is not UNTUNED else measured.compare(regime, placed, place, values)

    def _placed(self, regime: Regime, decision: Decision) -> PlacedGraph:
        placer, graph_id = self._placer, f"{self._home.graph.id}@{regime.first}"
        described = self._described(regime, graph_id, decision.choice)
        placed = PlacedGraph(
            described.module, placer.phase, graph_id, placer.roles, placer.environment, decision, described=described
        )
        if self._constants is not None:
            placed.bind(self._constants)
        return placed

    def _described(self, regime: Regime, graph_id: str, choice: Choice) -> LayoutChoice:
        """The graph at the regime's sizes; as the search planned it, unless something was measured."""
        home, placer = self._home, self._placer
        if choice == DEFAULT and _same_nodes(regime.graph, home.graph):
            graph = replace(regime.graph, id=graph_id)
            return LayoutChoice(home.layout.module, graph, replace(regime.plan, graph_id=graph_id), home.layout.record)
        return choose_layout(
            self._module, placer.phase, graph_id, placer.roles, placer.environment.planner, choice, hints=regime.hints
        )


def _same_nodes(graph: OpGraph, other: OpGraph) -> bool:
    """Whether the graphs are the same but for sizes: not one of them in another layout of images."""
    return [(node.name, node.op) for node in graph.nodes] == [(node.name, node.op) for node in other.nodes]


def size_reader(
    graph_module: torch.fx.GraphModule, graph: OpGraph, symbols: Sequence[sympy.Symbol]
) -> Callable[[Sequence[Any]], int]:
    """How to read the product of some symbols off the inputs of a call.

    Raises:
        ValueError: no input shows one of the symbols.
    """
    places = _places(graph_module)
    sources = [_source(graph, places, symbol) for symbol in symbols]
    if any(source is None for source in sources):
        raise ValueError(f"no input shows one of {', '.join(map(str, symbols))}")
    found = [source for source in sources if source is not None]
    numbers = [place for place, dimension in found if dimension is None]
    if len(found) == len(numbers) == 1:
        return itemgetter(*numbers)
    if len(found) == len(numbers) == 2:
        first, second = numbers
        return lambda arguments: arguments[first] * arguments[second]
    return lambda arguments: math.prod(
        [arguments[place] if dimension is None else arguments[place].shape[dimension] for place, dimension in found]
    )


_Source = tuple[int, int | None]
"""Position of an input, and the dimension of it; ``None`` if it is a number."""


def _places(graph_module: torch.fx.GraphModule) -> dict[str, int]:
    """Positions of the graph's inputs in a call, by name."""
    return {node.name: place for place, node in enumerate(graph_module.graph.find_nodes(op="placeholder"))}


def _source(graph: OpGraph, places: Mapping[str, int], symbol: sympy.Symbol) -> _Source | None:
    """Where a symbol can be read: a number is quicker than a tensor's size."""
    metas = [(places[item.name], item.meta) for item in graph.inputs if item.name in places]
    for place, meta in metas:
        if isinstance(meta, SymbolicSize) and meta.expression == symbol:
            return place, None
    for place, meta in metas:
        for dimension, size in enumerate(meta.shape if isinstance(meta, TensorMeta) else ()):
            if isinstance(size, SymbolicSize) and size.expression == symbol:
                return place, dimension
    return None
