"""``Mixture``: the object that ``torch.compile(backend=...)`` calls.

Place: the outermost layer; made by ``mixbackend.auto``, one per configuration.
Input: Dynamo's graphs with ``mode`` and ``options``. Output: callables for torch, and reports for people.
Invariants: a graph that cannot be compiled by us runs in eager, with an event, unless the policy is to raise.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from mixbackend import registry
from mixbackend.configuration import Config
from mixbackend.contracts import MixbackendError, Phase, PlacementError, RegionTextError
from mixbackend.contracts.torch_compat import forget_cuda_graphs
from mixbackend.locking.differences import made_with
from mixbackend.locking.model import MadeWith
from mixbackend.reporting import Event, Report
from mixbackend.reporting.records import IdentityRecord
from mixbackend.runtime.capture import capture
from mixbackend.runtime.constants.split import constant_placeholders
from mixbackend.runtime.constants.watch import why_unwatchable
from mixbackend.runtime.cut import Cut
from mixbackend.runtime.describe import PlaceholderRole, describe
from mixbackend.runtime.first_call import AtFirstCall, Run
from mixbackend.runtime.frozen import FrozenGraph
from mixbackend.runtime.identity import Captured
from mixbackend.runtime.joint import joint_key, mark_as_decided, mark_saved
from mixbackend.runtime.placed import PlacedGraph
from mixbackend.runtime.regimes import Measured, Placer, RegimeGraph
from mixbackend.runtime.session import Session
from mixbackend.tuning import tuner
from mixbackend.tuning.by_range import RangedTuning
from mixbackend.tuning.decision import UNTUNED, Decision

logger = logging.getLogger("mixbackend")

_MEASURES: Mapping[str, bool] = {
    "default": False,
    "reduce-overhead": False,
    "max-autotune": True,
    "max-autotune-no-cudagraphs": True,
}
"""Modes of torch.compile, and whether candidates are measured in them."""

_MODES_WITH_GRAPHS = frozenset({"reduce-overhead", "max-autotune"})
"""Modes in which what runs on a GPU is recorded into CUDA graphs."""


class Mixture:
    """A torch.compile backend that mixes backends.

    Args:
        config: what the user asked for.
    """

    __name__ = "mixbackend"

    def __init__(self, config: Config) -> None:
        self.config = config
        self._lock = threading.RLock()
        self._sessions: dict[tuple[Config, bool], Session] = {}
        self._graphs: list[PlacedGraph | RegimeGraph] = []
        self._identities: dict[str, IdentityRecord] = {}
        self._cuts: dict[str, Cut] = {}
        self._counters: dict[Phase, itertools.count[int]] = {}

    def __call__(
        self,
        graph_module: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compile one of Dynamo's graphs.

        Args:
            graph_module: Dynamo's graph.
            example_inputs: one value per placeholder.
            mode: of torch.compile.
            options: of torch.compile; override keys of the configuration.
        """
        session = self._session_for(mode, options)
        return capture(
            graph_module,
            example_inputs,
            lambda captured, phase, roles: self._compile(captured, phase, roles, session),
            lambda joint: self._prepare_joint(joint, session),
        )

    def compile_captured(
        self,
        module: torch.fx.GraphModule,
        phase: Phase,
        roles: dict[str, PlaceholderRole],
        decision: Decision = UNTUNED,
    ) -> Run:
        """Compile an ATen graph that was captured elsewhere, as was decided for it."""
        captured = Captured(module, phase, roles, self._new_id(phase))
        return self._build(captured, self._session(self.config), Measured(decision))

    def _session_for(self, mode: str | None, options: Mapping[str, Any] | None) -> Session:
        if mode is not None and mode not in _MEASURES:
            raise MixbackendError(what=f"unknown mode {mode!r}", hint=f"use {', '.join(_MEASURES)}")
        config = self.config.with_options(options) if options else self.config
        if mode is not None and _MEASURES[mode]:
            config = config.with_options({"search.mode": "measure"})
        records = mode in _MODES_WITH_GRAPHS and torch.cuda.is_available()
        session = self._session(config, records)
        if mode in _MODES_WITH_GRAPHS and not records:
            detail = f"mode {mode!r} runs without CUDA graphs: torch finds no CUDA device"
            session.events.append(Event("fallback", "", "", "", detail))
        return session

    def report(self, *, advice: bool = False) -> Report:
        """What this object compiled so far.

        Args:
            advice: also say which refusals cost most; places each graph again a few times.
        """
        with self._lock:
            records = [graph.record(advice=advice) for graph in self._graphs]
            graphs = tuple(replace(item, identity=self._identities.get(item.graph.id)) for item in records)
            events = tuple(event for session in self._sessions.values() for event in session.events.events())
        return Report(graphs, events, self.config.preferences(), registry.skipped(self.config.backends))

    def cuts(self) -> dict[str, Cut]:
        """What joint graphs save for the backward, by their keys, for a lock file; empty unless something measures."""
        with self._lock:
            return dict(self._cuts)

    def made_with(self) -> MadeWith:
        """What plans of this object are made with, for a lock file."""
        return made_with(self._session(self.config).backends)

    def check_lock(self, made_by: str) -> None:
        """Raise if what was compiled is not what the lock file says.

        Args:
            made_by: the command that runs: all graphs of the file that it made must have come up.

        Raises:
            LockError: with every difference of every graph.
        """
        lock = self._session(self.config).lock
        if lock is not None:
            lock.check(made_by)

    def time_regions(self) -> None:
        """Time the next calls of every region of every graph, for the report."""
        with self._lock:
            graphs = tuple(self._graphs)
        for graph in graphs:
            graph.time_regions()

    def reset(self) -> None:
        """Forget all compiled graphs and events; called by ``torch._dynamo.reset()``."""
        with self._lock:
            if any(session.records for session in self._sessions.values()):
                forget_cuda_graphs()
            self._graphs.clear()
            self._identities.clear()
            self._cuts.clear()
            self._sessions.clear()
            self._counters.clear()

    def _prepare_joint(self, joint: torch.fx.GraphModule, session: Session) -> None:
        try:
            self._cut(joint, session)
        except Exception as error:
            if session.config.on_failure == "raise" or session.config.lock.frozen:
                raise
            session.events.append(Event("fallback", "joint", "", "", f"split as torch would: {error}"))

    def _cut(self, joint: torch.fx.GraphModule, session: Session) -> None:
        """Mark what a joint graph saves: as locked, or by estimates; remember that if it may be locked."""
        key = ""
        if session.lock is not None or session.config.search.mode == "measure":
            with contextlib.suppress(RegionTextError):
                key = joint_key(joint)
        locked = session.lock.cut(key) if session.lock is not None and key else None
        if session.lock is not None and locked is not None:
            try:
                mark_as_decided(joint, locked)
                return
            except PlacementError as error:
                session.lock.settle("joint", [error.what])
        cut = mark_saved(joint, session)
        with self._lock:
            self._cuts.update({key: cut} if key else {})

    def _session(self, config: Config, records: bool = False) -> Session:
        with self._lock:
            if (config, records) not in self._sessions:
                self._sessions[config, records] = Session(config, records)
            return self._sessions[config, records]

    def _new_id(self, phase: Phase) -> str:
        with self._lock:
            return f"{phase}-{next(self._counters.setdefault(phase, itertools.count()))}"

    def _compile(
        self, module: torch.fx.GraphModule, phase: Phase, roles: dict[str, PlaceholderRole], session: Session
    ) -> Run:
        """Compile a graph as it was decided; by estimates if that cannot be found out."""
        captured = Captured(module, phase, roles, self._new_id(phase))
        try:
            return self._compile_decided(captured, session)
        except Exception as error:
            if session.config.on_failure == "raise" or session.config.lock.frozen:
                raise
            logger.debug("looking up %s failed", captured.id, exc_info=True)
            detail = f"placed by estimates, what was decided is not known: {type(error).__name__}: {error}"
            session.events.append(Event("fallback", captured.id, "", "", detail))
            return self._build(captured, session, None)

    def _compile_decided(self, captured: Captured, session: Session) -> Run:
        """As the lock file or an earlier measurement says; measured at the first call if that is wanted."""
        locked = self._locked(captured, session)
        if locked is not None:
            return self._build(captured, session, Measured(locked))
        subject = tuner.subject_if_any(captured, session)
        if subject is None:
            return self._build(captured, session, None)
        ranged = RangedTuning.of(captured, subject, session)
        known = ranged.remembered()
        if known is not UNTUNED or not ranged.measuring:
            return self._build(captured, session, ranged.measured(known))
        return AtFirstCall(lambda values: self._build(captured, session, ranged.measured(ranged.at_first_call(values))))

    def _locked(self, captured: Captured, session: Session) -> Decision | None:
        """What the lock file says; ``None`` if there is none, or nothing in it.

        Raises:
            LockError: the lock is frozen, and something differs.
        """
        if session.lock is not None:
            ops = functools.partial(_count_ops, captured, session)
            return session.lock.decision(captured.id, captured.phase, lambda: self._identify(captured, session), ops)
        if session.config.search.mode == "measure":
            # What is measured may be locked later. A graph that has no text cannot be; tuning tells that.
            with contextlib.suppress(RegionTextError):
                self._identify(captured, session)
        return None

    def _identify(self, captured: Captured, session: Session) -> IdentityRecord:
        identity = captured.identity
        weights = "constant" if self._constants(captured, session) else "live"
        record = IdentityRecord(identity.key, identity.passed, weights, session.device(identity.graph))
        with self._lock:
            self._identities[captured.id] = record
        return record

    def _build(self, captured: Captured, session: Session, measured: Measured | None) -> Run:
        module, phase, roles, graph_id = captured.module, captured.phase, captured.roles, captured.id
        try:
            constants = self._constants(captured, session)
            if constants:
                return FrozenGraph(module, phase, graph_id, roles, constants, session, self._keep, measured)
            placed = Placer(phase, roles, session, measured)(module, graph_id)
        except Exception as error:
            if session.config.on_failure == "raise" or session.config.lock.frozen:
                raise
            logger.debug("compiling %s failed", graph_id, exc_info=True)
            session.events.append(Event("fallback", graph_id, "", "", f"the graph runs in eager: {error}"))
            return lambda arguments: _run_eager(module, arguments)
        self._keep(placed)
        return placed

    def _keep(self, placed: PlacedGraph | RegimeGraph) -> None:
        with self._lock:
            self._graphs.append(placed)

    def _constants(self, captured: Captured, session: Session) -> frozenset[str]:
        """Weights of the graph that may be constants: in inference, where changes can be seen."""
        if captured.phase != "inference" or session.config.weights == "live":
            return frozenset()
        constants = constant_placeholders(captured.module, captured.roles)
        reason = why_unwatchable() if constants else ""
        if not reason:
            return constants
        session.events.append(Event("fallback", "", "", "", f"weights are live inputs: {reason}"))
        return frozenset()


def _count_ops(captured: Captured, session: Session) -> Counter[str]:
    """How often each operator is in the graph that is placed."""
    graph = describe(*tuner.placeable(captured, session)[:2], captured.id)
    return Counter(node.op for node in graph.placed_nodes)


def _run_eager(module: torch.fx.GraphModule, arguments: list[Any]) -> Sequence[Any]:
    values = list(arguments)
    arguments.clear()
    return module.forward(*values)
