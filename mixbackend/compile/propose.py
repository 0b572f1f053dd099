"""Propose: how a captured graph is placed: as it is locked, as it was measured, or by estimates.

Place: second step of ``compile.driver``. Input: a prepared graph. Output: ``Outlook``: the sized graph, and what its
first calls are to find out.
Order: the lock file; what tuning decided; what an earlier first call showed; estimates. Where measuring in processes of
their own is wanted, nothing is proposed before there are values.
Invariants: nothing is compiled here; a decision never reaches sizes outside of the range that it was measured in.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mixbackend.compile.program import Proposal
from mixbackend.compile.sized_graph import SizedGraph
from mixbackend.compile.stages import StageDriver
from mixbackend.contracts import RegionTextError
from mixbackend.graph.describe import describe
from mixbackend.graph.identity import Captured
from mixbackend.graph.prepared import Prepared
from mixbackend.plan.environment import Environment
from mixbackend.plan.layout_choice import choose_layout
from mixbackend.plan.regime_search import Ladder
from mixbackend.plan.size_buckets import ladder_of
from mixbackend.reporting import Event
from mixbackend.reporting.records import IdentityRecord
from mixbackend.select.by_range import RangedDecisions
from mixbackend.select.decision import UNTUNED, Decision

logger = logging.getLogger("mixbackend")


@dataclass(frozen=True)
class Outlook:
    """What is known before the first call.

    Attributes:
        captured: the graph.
        prepared: what of it is placed; ``None`` where eager runs it.
        sized: how; ``None`` where measuring needs values first.
        ranged: decisions by range of sizes; ``None`` where nothing is to be looked up or found out.
        identity: what makes the graph the same elsewhere; ``None`` where it was not asked for, or it has no text.
    """

    captured: Captured
    prepared: Prepared | None
    sized: SizedGraph | None
    ranged: RangedDecisions | None = None
    identity: IdentityRecord | None = None

    def measured(self, values: Sequence[Any], environment: Environment) -> Outlook:
        """The outlook once the graph was measured with the values of its first call."""
        assert self.ranged is not None and self.prepared is not None, "it waits for a decision"
        return replace(self, sized=_sized(self.prepared, self.ranged.at_first_call(values), self, environment))


def propose(
    captured: Captured, prepared: Prepared, environment: Environment, decision: Decision | None = None
) -> Outlook:
    """Propose plans for a graph.

    Args:
        captured: the graph.
        prepared: what of it is placed.
        environment: configuration, backends, costs and caches.
        decision: what was decided about it elsewhere; ``None`` to ask the lock file and what was measured.

    Raises:
        MixbackendError: no placement exists, or the lock is frozen and something differs.
    """
    outlook = Outlook(captured, prepared, None)
    if decision is not None:
        return replace(outlook, sized=SizedGraph(prepared, _home(prepared, captured.id, decision, environment), None))
    known: Decision | None = UNTUNED
    try:
        identity, locked = _locked(captured, prepared, environment)
        outlook = replace(outlook, identity=identity)
        if locked is not None:
            return replace(outlook, sized=SizedGraph(prepared, _home(prepared, captured.id, locked, environment), None))
        ranged = RangedDecisions(captured, prepared, environment)
        known = _known(ranged)
        outlook = replace(outlook, ranged=ranged)
    except Exception as error:
        if environment.strict:
            raise
        logger.debug("looking up %s failed", captured.id, exc_info=True)
        detail = f"placed by estimates, what was decided is not known: {type(error).__name__}: {error}"
        environment.events.append(Event("fallback", captured.id, "", "", detail))
    return outlook if known is None else replace(outlook, sized=_sized(prepared, known, outlook, environment))


def _locked(
    captured: Captured, prepared: Prepared, environment: Environment
) -> tuple[IdentityRecord | None, Decision | None]:
    """What makes the graph the same elsewhere, where that is needed; what the lock file says of it.

    Raises:
        LockError: the lock is frozen, and something differs.
    """
    if environment.lock is None and environment.config.search.mode != "measure":
        return None, None
    graph, choice, identity = _Asked(captured, prepared, environment), None, None
    if environment.lock is not None:
        choice = environment.lock.choice(captured.id, captured.phase, graph)
    # What is measured may be locked later. A graph that has no text cannot be; tuning tells that.
    with contextlib.suppress(RegionTextError):
        identity = graph.identity
    return identity, None if choice is None else Decision(choice)


@dataclass(frozen=True)
class _Asked:
    """See ``plan.locked_plans.AskedGraph``."""

    captured: Captured
    prepared: Prepared
    environment: Environment

    @functools.cached_property
    def identity(self) -> IdentityRecord:
        """What makes the graph the same elsewhere."""
        identity, weights = self.captured.identity, "live" if self.prepared.split is None else "constant"
        return IdentityRecord(identity.key, identity.passed, weights, self.environment.device(identity.graph))

    @functools.cached_property
    def ops(self) -> Counter[str]:
        """How often each operator is in the graph that is placed."""
        graph = describe(self.prepared.module, self.prepared.phase, self.captured.id, self.prepared.roles)
        return Counter(node.op for node in graph.placed_nodes)


def by_estimates(captured: Captured, prepared: Prepared, environment: Environment) -> SizedGraph:
    """A graph placed by estimates alone, whatever was measured of it."""
    return _sized(prepared, UNTUNED, Outlook(captured, prepared, None), environment)


def _known(ranged: RangedDecisions) -> Decision | None:
    """What was found out before; ``None`` where it is to be measured first."""
    known = ranged.tuned()
    if known is UNTUNED and ranged.measuring:
        return None
    return ranged.compared() if known is UNTUNED else known


def _sized(prepared: Prepared, decision: Decision, outlook: Outlook, environment: Environment) -> SizedGraph:
    home = _home(prepared, outlook.captured.id, decision, environment)
    return SizedGraph(prepared, home, _ladder(home, decision, outlook, environment))


def _home(prepared: Prepared, graph_id: str, decision: Decision, environment: Environment) -> Proposal:
    arguments = prepared.module, prepared.phase, graph_id, prepared.roles, environment.planner, decision.choice
    driver = StageDriver(graph_id, environment.debug)
    layout = driver.run("describe", choose_layout, *arguments, show=lambda choice: str(choice.graph))
    if layout.plan is None and layout.graph.dynamic and decision is UNTUNED:
        # The search for size buckets begins with it.
        layout = replace(layout, plan=environment.planner.place(layout.graph))
    return Proposal(layout, decision)


def _ladder(home: Proposal, decision: Decision, outlook: Outlook, environment: Environment) -> Ladder | None:
    """By estimates, whatever was decided: decisions are kept for the ranges that estimates find."""
    if not home.graph.dynamic:
        return None
    if decision is not UNTUNED or home.layout.plan is None:
        return None if outlook.ranged is None else outlook.ranged.ladder
    ladder = ladder_of(home.layout, home.layout.plan, environment.planner)
    if outlook.ranged is not None:
        outlook.ranged.ladder = ladder  # it would search the same once more
    return ladder
