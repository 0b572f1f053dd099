"""Compiling one captured graph: as it is locked, as it was measured, or by estimates.

Place: between ``graph.capture`` and ``compile.placed`` or ``compile.frozen``.
Input: a captured graph, an environment. Output: a callable on the list of graph inputs.
Order: the lock file; what tuning decided; what an earlier first call showed; estimates. Where measuring is wanted, it
happens at the first call, when there are values.
Invariants: a graph that cannot be compiled by us runs in eager, with an event, unless the policy is to raise.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.compile.comparing import FirstCalls
from mixbackend.compile.compiled_graphs import CompiledGraphs, Placed
from mixbackend.compile.first_call import AtFirstCall
from mixbackend.compile.frozen import FrozenGraph
from mixbackend.compile.regimes import Measured, Placer
from mixbackend.contracts import Phase, PlacementError, RegionTextError, VerificationError
from mixbackend.execute.run_function import Run
from mixbackend.execute.sharing_check import HeldToSharing
from mixbackend.execute.unwritten_values import WrittenValues, has_negated_values, write_out_zeros
from mixbackend.execute.weights.constant_weights import constant_weights
from mixbackend.graph.aliases import expected_sharing
from mixbackend.graph.describe import PlaceholderRole, describe
from mixbackend.graph.identity import Captured
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event
from mixbackend.reporting.records import IdentityRecord
from mixbackend.select import comparison, tuner
from mixbackend.select.by_range import RangedDecisions
from mixbackend.select.decision import UNTUNED, Decision

logger = logging.getLogger("mixbackend")


@dataclass(frozen=True)
class GraphCompiler:
    """See the module's docstring.

    Attributes:
        environment: configuration, backends, costs and caches.
        graphs: told of everything that is placed.
    """

    environment: Environment
    graphs: CompiledGraphs

    def __call__(self, module: torch.fx.GraphModule, phase: Phase, roles: dict[str, PlaceholderRole]) -> Run:
        """Compile a graph as it was decided; by estimates if that cannot be found out."""
        write_out_zeros(module)
        captured = Captured(module, phase, roles, self.graphs.new_id(phase))
        sharing = expected_sharing(module, phase)

        def tell(problem: str) -> None:
            self._shared_otherwise(captured.id, problem)

        eager = functools.partial(_run_eager, module)
        if has_negated_values(module):
            detail = "eager runs the graph: it has views that are negated when they are read"
            self.environment.events.append(Event("fallback", captured.id, "", "", detail))
            return eager
        names = [node.name for node in module.graph.find_nodes(op="placeholder")]
        held = WrittenValues(HeldToSharing(self._run(captured), sharing, eager, tell), eager, names, roles)
        # Torch holds it as long as the model lives; the report keeps what was placed.
        weakref.finalize(held, self.graphs.let_go, captured.id).atexit = False
        return held

    def _run(self, captured: Captured) -> Run:
        try:
            return self._decided(captured)
        except Exception as error:
            if self._strict:
                raise
            logger.debug("looking up %s failed", captured.id, exc_info=True)
            detail = f"placed by estimates, what was decided is not known: {type(error).__name__}: {error}"
            self.environment.events.append(Event("fallback", captured.id, "", "", detail))
            return self._build(captured, None)

    def _shared_otherwise(self, graph_id: str, problem: str) -> None:
        if self._strict:
            raise VerificationError(
                what=f"graph {graph_id}: {problem}, unlike in eager",
                hint="this is a fault of ours or of a backend; report it with MIXBACKEND_DUMP",
            )
        detail = f"eager runs the graph from now on, its results shared memory otherwise: {problem}"
        self.environment.events.append(Event("verify_failed", graph_id, "", "", detail))

    def build(
        self, module: torch.fx.GraphModule, phase: Phase, roles: dict[str, PlaceholderRole], decision: Decision
    ) -> Run:
        """Compile a graph as was decided for it elsewhere."""
        return self._build(Captured(module, phase, roles, self.graphs.new_id(phase)), Measured(decision))

    @property
    def _strict(self) -> bool:
        return self.environment.config.on_failure == "raise" or self.environment.config.lock.frozen

    def _decided(self, captured: Captured) -> Run:
        locked = self._locked(captured)
        if locked is not None:
            return self._build(captured, Measured(locked))
        ranged = RangedDecisions(captured, self.environment)
        comparing = FirstCalls(captured, ranged, self.environment, self.graphs, self._built)
        known = ranged.tuned()
        if known is UNTUNED and ranged.measuring:
            return AtFirstCall(lambda values: self._build(captured, ranged.measured(ranged.at_first_call(values))))
        known = ranged.shown() if known is UNTUNED else known
        if known is not UNTUNED:
            return self._build(captured, ranged.measured(known, comparing.in_range))
        ground = comparison.ground_of(captured, self.environment)
        if ground is None:
            return self._build(captured, None)
        measured = ranged.measured(UNTUNED, comparing.in_range)
        return comparing.of_graph(ground, measured, self._build)

    def _locked(self, captured: Captured) -> Decision | None:
        """What the lock file says; ``None`` if there is none, or nothing in it.

        Raises:
            LockError: the lock is frozen, and something differs.
        """
        lock = self.environment.lock
        if lock is not None:
            ops = functools.partial(_count_ops, captured, self.environment)
            choice = lock.choice(captured.id, captured.phase, lambda: self._identify(captured), ops)
            return None if choice is None else Decision(choice)
        if self.environment.config.search.mode == "measure":
            # What is measured may be locked later. A graph that has no text cannot be; tuning tells that.
            with contextlib.suppress(RegionTextError):
                self._identify(captured)
        return None

    def _identify(self, captured: Captured) -> IdentityRecord:
        identity = captured.identity
        weights = "constant" if self._constants(captured) else "live"
        record = IdentityRecord(identity.key, identity.passed, weights, self.environment.device(identity.graph))
        self.graphs.identify(captured.id, record)
        return record

    def _build(self, captured: Captured, measured: Measured | None, told: list[Placed] | None = None) -> Run:
        """``_built``; a graph that cannot be built runs in eager, unless that is to be an error."""
        try:
            return self._built(captured, measured, told)
        except Exception as error:
            # Who requires a backend wants to hear that it cannot be had, whatever is done about failures.
            unmet = isinstance(error, PlacementError) and self.environment.config.required_backends()
            if self._strict or unmet:
                raise
            logger.debug("compiling %s failed", captured.id, exc_info=True)
            self.environment.events.append(Event("fallback", captured.id, "", "", f"the graph runs in eager: {error}"))
            return lambda arguments: _run_eager(captured.module, arguments)

    def _built(self, captured: Captured, measured: Measured | None, told: list[Placed] | None) -> Run:
        """Build a graph; what is placed for it is also appended to ``told``.

        Raises:
            MixbackendError: no placement exists, or failures are to be raised.
        """

        def keep(placed: Placed) -> None:
            self.graphs.keep(placed)
            if told is not None:
                told.append(placed)

        module, phase, roles, graph_id = captured.module, captured.phase, captured.roles, captured.id
        constants = self._constants(captured)
        if constants:
            return FrozenGraph(module, phase, graph_id, roles, constants, self.environment, keep, measured)
        placed = Placer(phase, roles, self.environment, measured)(module, graph_id)
        keep(placed)
        return placed

    def _constants(self, captured: Captured) -> frozenset[str]:
        """Weights of the graph that are constants."""
        weights = self.environment.config.weights
        constants, reason = constant_weights(captured.module, captured.phase, captured.roles, weights)
        if reason:
            self.environment.events.append(Event("fallback", "", "", "", f"weights are live inputs: {reason}"))
        return constants


def _count_ops(captured: Captured, environment: Environment) -> Counter[str]:
    """How often each operator is in the graph that is placed."""
    graph = describe(*tuner.placeable(captured, environment)[:2], captured.id)
    return Counter(node.op for node in graph.placed_nodes)


def _run_eager(module: torch.fx.GraphModule, arguments: list[Any]) -> Sequence[Any]:
    values = list(arguments)
    arguments.clear()
    return module.forward(*values)
