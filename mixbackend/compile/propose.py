"""Propose: how a captured graph is placed: as it is locked, as it was measured, or by estimates.

Place: second step of ``compile.driver``. Input: a prepared graph. Output: ``Outlook``: the sized graph, and what its
first calls are to find out.
Order: the lock file; what another rank of the job proposed; what tuning decided; what an earlier first call showed;
estimates. Where measuring in processes of their own is wanted, nothing is proposed before there are values.
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

from mixbackend.compile.agreement import Agreement
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
        agreement: of the ranks of a job; ``None`` where this process decides alone.
    """

    captured: Captured
    prepared: Prepared | None
    sized: SizedGraph | None
    ranged: RangedDecisions | None = None
    identity: IdentityRecord | None = None
    agreement: Agreement | None = None

    def measured(self, values: Sequence[Any], environment: Environment) -> Outlook:
        """The outlook once the graph was measured with the values of its first call."""
        assert self.ranged is not None and self.prepared is not None, "it waits for a decision"
        agreed = _as_agreed(self)
        if agreed is not None:
            return agreed
        return replace(self, sized=_settled(self.prepared, self.ranged.at_first_call(values), self, environment))

    def agreed(self, sized: SizedGraph) -> Outlook:
        """The outlook where the graph is placed as another rank does."""
        if self.ranged is not None:
            self.ranged.ladder = sized.ladder
        return replace(self, sized=sized)


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
    locked = None
    try:
        identity, locked = _locked(captured, prepared, environment)
        outlook = replace(outlook, identity=identity)
    except Exception as error:
        _unknown(captured, error, environment)
    if locked is not None:
        return replace(outlook, sized=SizedGraph(prepared, _home(prepared, captured.id, locked, environment), None))
    agreement = Agreement.of(captured, prepared, environment)
    outlook = replace(outlook, agreement=agreement)
    try:
        outlook = replace(outlook, ranged=RangedDecisions(captured, prepared, environment))
    except Exception as error:
        _unknown(captured, error, environment)
    if agreement is None or environment.config.search.mode == "measure":
        # Measuring takes longer than other ranks could wait: the rank that is first with it decides.
        return _as_agreed(outlook) or _by_this_process(outlook, environment)
    with agreement.turn() as agreed:
        return _by_this_process(outlook, environment) if agreed is None else outlook.agreed(agreed)


def _as_agreed(outlook: Outlook) -> Outlook | None:
    """As other ranks place it; ``None`` if they have not decided yet, or there are none."""
    agreed = None if outlook.agreement is None else outlook.agreement.standing()
    return None if agreed is None else outlook.agreed(agreed)


def _by_this_process(outlook: Outlook, environment: Environment) -> Outlook:
    """As was measured before, or by estimates; not yet where measuring needs values first."""
    prepared, known = outlook.prepared, UNTUNED
    assert prepared is not None, "it is to be placed"
    try:
        decided = UNTUNED if outlook.ranged is None else _known(outlook.ranged)
        if decided is None:
            return outlook
        known = decided
    except Exception as error:
        outlook = replace(outlook, ranged=None)
        _unknown(outlook.captured, error, environment)
    return replace(outlook, sized=_settled(prepared, known, outlook, environment))


def _unknown(captured: Captured, error: Exception, environment: Environment) -> None:
    """What was decided cannot be looked up."""
    if environment.strict:
        raise error
    logger.debug("looking up %s failed", captured.id, exc_info=error)
    detail = f"placed by estimates, what was decided is not known: {type(error).__name__}: {error}"
    environment.events.append(Event("fallback", captured.id, "", "", detail))


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
    outlook = Outlook(captured, prepared, None, agreement=Agreement.of(captured, prepared, environment))
    return _settled(prepared, UNTUNED, outlook, environment)


def _known(ranged: RangedDecisions) -> Decision | None:
    """What was found out before; ``None`` where it is to be measured first."""
    known = ranged.tuned()
    if known is UNTUNED and ranged.measuring:
        return None
    return ranged.compared() if known is UNTUNED else known


def _settled(prepared: Prepared, decision: Decision, outlook: Outlook, environment: Environment) -> SizedGraph:
    """As this process places it; in a job of several ranks, as the first of them does."""
    sized = _sized(prepared, decision, outlook, environment)
    return sized if outlook.agreement is None else outlook.agreement.settled(sized)


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
