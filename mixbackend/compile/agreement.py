"""Agreement: ranks of one job that captured the same graph run the same plan of it.

Place: around ``compile.propose``, and asked by ``compile.cells`` for further ranges of sizes. Input: what this rank
proposes. Output: what it is to build: that, or what another rank proposed before.
Method: the first proposal that is written into the job's store (``storage.job``) stands, whatever it came of: estimates
of this machine, decisions of its database, a measurement. The others wait for the rank that plans, at most about as
long as planning takes, and then plan by themselves; what they find counts if nothing stands even then. So costs and
databases of ranks never make their programs differ. Of a graph with symbolic sizes the ranges are agreed on, and the
plan in each range by itself: ranks may be called with other sizes.
A graph is known by its canonical text, its phase, the kind of its device and what the configuration says about
placement (and its modules, where rules match these); ranks with other graphs (stages of a pipeline) never meet.
Invariants: what another rank wrote is read as any plan from outside: it must be legal for the graph here, and no
backend may refuse its ops. What is not believed, and a store that fails, are events, and this rank goes its own way.
Non-goals: what a lock file says, which needs no agreement; repairs after a backend failed on one rank, its own affair.
Units: seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from mixbackend.compile.council import Council, key_of
from mixbackend.compile.program import Proposal
from mixbackend.compile.sized_graph import SizedGraph, same_nodes
from mixbackend.contracts import PlacementError, Plan, RegionTextError
from mixbackend.contracts.rehint import symbols_of
from mixbackend.graph.identity import Captured
from mixbackend.graph.prepared import Prepared
from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.partitioner.plan_data import plan_from_data, plan_to_data
from mixbackend.plan.choice import Choice
from mixbackend.plan.environment import Environment
from mixbackend.plan.ladder_data import ladder_from_data, ladder_to_data
from mixbackend.plan.layout_choice import LaidOutGraph, in_layout
from mixbackend.plan.regime_search import Regime
from mixbackend.reporting import Event
from mixbackend.reporting.records import AS_TRACED, CHANNELS_LAST
from mixbackend.select.decision import Decision
from mixbackend.storage.job import Standing, job_here


@dataclass(frozen=True)
class Agreement:
    """See the module's docstring.

    Attributes:
        prepared: what is placed.
        dynamic: whether it has symbolic sizes.
        council: of the ranks.
    """

    prepared: Prepared
    dynamic: bool
    council: Council

    @classmethod
    def of(cls, captured: Captured, prepared: Prepared, environment: Environment) -> Agreement | None:
        """``None`` where there are no other ranks, or they could not tell which graph it is."""
        job = job_here()
        if job is None:
            return None
        try:
            identity = captured.identity
        except RegionTextError as error:
            detail = f"decided by this rank alone, the graph has no text to know it by: {error}"
            environment.events.append(Event("ranks", captured.id, "", "", detail))
            return None
        weights = "live" if prepared.split is None else "constant"
        council = Council(job, key_of(f"plan, {weights} weights", identity, environment), captured.id, environment)
        return cls(prepared, captured.dynamic, council)

    @contextmanager
    def turn(self) -> Iterator[SizedGraph | None]:
        """The time in which this rank proposes; gives what another rank proposed, if that is there and holds."""
        with self.council.turn(len(self.prepared.module.graph.nodes)) as turn:
            found = None if turn is None else turn.found
            yield None if turn is None or found is None else self._taken(found, turn.waited_s)

    def standing(self) -> SizedGraph | None:
        """What was agreed on, if that is there now and holds."""
        found = self.council.standing()
        return None if found is None else self._taken(found)

    def settled(self, sized: SizedGraph) -> SizedGraph:
        """What all ranks build: this rank's proposal, or that of one which was first."""
        ladder = sized.ladder
        mine = replace(sized, home=self.in_range(sized.home, None if ladder is None else ladder.regimes[ladder.home]))
        if not self.dynamic:
            return mine
        told = None if ladder is None else ladder_to_data(ladder) | {"layout": _layout_of_ladder(sized)}
        first = self.council.first({"ladder": told})
        taken = None if first is None else self._taken(first)
        return mine if taken is None else taken

    def in_range(self, proposal: Proposal, regime: Regime | None) -> Proposal:
        """What all ranks build for a range of sizes: this rank's proposal, or that of one which was first."""
        layout, planner = proposal.layout, self.council.environment.planner
        plan = layout.plan or planner.place(layout.graph, choice=proposal.decision.choice)
        mine = replace(proposal, layout=replace(layout, plan=plan))
        first = self.council.first(_told(layout.record.chosen, canonical_plan(plan, layout.graph)), self._cell(regime))
        if first is None:
            return mine
        try:
            taken = self._proposal(first.value, layout)
        except _MISFITS as error:
            self.council.doubts(first, error)
            return mine
        self.council.follows(first)
        return taken

    def _cell(self, regime: Regime | None) -> str:
        """Where the plan for a range stands; where there are no ranges, it is all that is agreed on."""
        return f"@{regime or 'all'}" if self.dynamic else ""

    def _taken(self, standing: Standing, waited_s: float = 0.0) -> SizedGraph | None:
        """What another rank proposed, for the graph as it was captured here; ``None`` if it does not hold."""
        try:
            sized = self._sized(standing.value)
        except _MISFITS as error:
            self.council.doubts(standing, error)
            return None
        self.council.follows(standing, waited_s)
        return sized

    def _sized(self, value: Mapping[str, Any]) -> SizedGraph:
        if not self.dynamic:
            return SizedGraph(self.prepared, self._proposal(value), None)
        told, held = value["ladder"], self.council.environment.planner.held
        ladder = None if told is None else ladder_from_data(told, self._laid_out(told["layout"]).graph, held)
        regime = None if ladder is None else ladder.regimes[ladder.home]
        standing = self.council.standing(self._cell(regime))
        if standing is None and ladder is not None:
            # No rank that came before was called with such sizes.
            regime = ladder.regimes[ladder.home]
            estimated = _told(told["layout"], canonical_plan(regime.plan, regime.graph))
            standing = self.council.first(estimated, self._cell(regime))
            value = estimated if standing is None else standing.value
        elif standing is not None:
            value = standing.value
        return SizedGraph(self.prepared, self._proposal(value), ladder)

    def _proposal(self, value: Mapping[str, Any], like: LaidOutGraph | None = None) -> Proposal:
        """A plan that another rank told.

        Args:
            value: what it told.
            like: the graph at the sizes of the plan, in either layout; ``None`` for those it was captured at.
        """
        layout, plan = str(value["layout"]), plan_from_data(value["plan"])
        if like is None or like.record.chosen != layout:
            like = self._laid_out(layout, like)
        held = self.council.environment.planner.held(like.graph, plan)
        return Proposal(replace(like, plan=held), Decision(Choice(layout=layout, plan=plan)))

    def _laid_out(self, layout: str, like: LaidOutGraph | None = None) -> LaidOutGraph:
        prepared = self.prepared
        graph_id = self.council.graph_id if like is None else like.graph.id
        hints = {} if like is None else {item: size.hint for item, size in symbols_of(like.graph).items() if size.hint}
        found = in_layout(prepared.module, prepared.phase, graph_id, prepared.roles, layout, hints)
        if found.record.chosen != layout:
            raise ValueError(f"the graph has no layout {layout!r}")
        return found


_MISFITS = KeyError, TypeError, ValueError, PlacementError
"""What is raised where something was read that is not, or does not fit, what was asked for."""


def _told(layout: str, plan: Plan) -> dict[str, Any]:
    return {"layout": layout, "plan": plan_to_data(plan)}


def _layout_of_ladder(sized: SizedGraph) -> str:
    """Ladders follow estimates: where a decision has the home plan, its layout may be the other one."""
    assert sized.ladder is not None
    home = sized.home.layout
    if same_nodes(sized.ladder.regimes[0].graph, home.graph):
        return home.record.chosen
    return AS_TRACED if home.record.chosen == CHANNELS_LAST else CHANNELS_LAST
