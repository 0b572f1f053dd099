"""``Mixture``: the object that ``torch.compile(backend=...)`` calls.

Place: the outermost layer; made by ``mixbackend.auto``, one per configuration.
Input: Dynamo's graphs with ``mode`` and ``options``. Output: callables for torch, and reports for people.
Invariants: a graph that cannot be compiled by us runs in eager, with an event, unless the policy is to raise.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend import registry
from mixbackend.configuration import Config
from mixbackend.contracts import MixbackendError, Phase
from mixbackend.reporting import Event, Report
from mixbackend.runtime.capture import capture
from mixbackend.runtime.constants.split import constant_placeholders
from mixbackend.runtime.constants.watch import why_unwatchable
from mixbackend.runtime.describe import PlaceholderRole
from mixbackend.runtime.first_call import AtFirstCall, Run
from mixbackend.runtime.frozen import FrozenGraph
from mixbackend.runtime.joint import mark_saved
from mixbackend.runtime.placed import PlacedGraph
from mixbackend.runtime.regimes import Measured, Placer, RegimeGraph
from mixbackend.runtime.session import Session
from mixbackend.tuning import tuner
from mixbackend.tuning.decision import UNTUNED, Decision
from mixbackend.tuning.tuner import Captured

logger = logging.getLogger("mixbackend")

_MEASURES: Mapping[str, bool] = {
    "default": False,
    "reduce-overhead": False,
    "max-autotune": True,
    "max-autotune-no-cudagraphs": True,
}
"""Modes of torch.compile, and whether candidates are measured in them."""

_MODES_WITH_GRAPHS = frozenset({"reduce-overhead", "max-autotune"})


class Mixture:
    """A torch.compile backend that mixes backends.

    Args:
        config: what the user asked for.
    """

    __name__ = "mixbackend"

    def __init__(self, config: Config) -> None:
        self.config = config
        self._lock = threading.RLock()
        self._sessions: dict[Config, Session] = {}
        self._graphs: list[PlacedGraph | RegimeGraph] = []
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
        session = self._session(config)
        if mode in _MODES_WITH_GRAPHS:
            detail = f"mode {mode!r} runs without CUDA graphs, which are not built yet"
            session.events.append(Event("fallback", "", "", "", detail))
        return session

    def report(self, *, advice: bool = False) -> Report:
        """What this object compiled so far.

        Args:
            advice: also say which refusals cost most; places each graph again a few times.
        """
        with self._lock:
            graphs = tuple(graph.record(advice=advice) for graph in self._graphs)
            events = tuple(event for session in self._sessions.values() for event in session.events.events())
        return Report(graphs, events, self.config.preferences(), registry.skipped(self.config.backends))

    def time_regions(self) -> None:
        """Time the next calls of every region of every graph, for the report."""
        with self._lock:
            graphs = tuple(self._graphs)
        for graph in graphs:
            graph.time_regions()

    def reset(self) -> None:
        """Forget all compiled graphs and events; called by ``torch._dynamo.reset()``."""
        with self._lock:
            self._graphs.clear()
            self._sessions.clear()
            self._counters.clear()

    def _prepare_joint(self, joint: torch.fx.GraphModule, session: Session) -> None:
        try:
            mark_saved(joint, session)
        except Exception as error:
            if session.config.on_failure == "raise":
                raise
            session.events.append(Event("fallback", "joint", "", "", f"split as torch would: {error}"))

    def _session(self, config: Config) -> Session:
        with self._lock:
            if config not in self._sessions:
                self._sessions[config] = Session(config)
            return self._sessions[config]

    def _new_id(self, phase: Phase) -> str:
        with self._lock:
            return f"{phase}-{next(self._counters.setdefault(phase, itertools.count()))}"

    def _compile(
        self, module: torch.fx.GraphModule, phase: Phase, roles: dict[str, PlaceholderRole], session: Session
    ) -> Run:
        """Compile a graph as it was decided before; measure at its first call if that is wanted; else by estimates."""
        captured = Captured(module, phase, roles, self._new_id(phase))
        subject = tuner.subject_if_any(captured, session)
        known = UNTUNED if subject is None else tuner.remembered(subject, session)
        if subject is None or known is not UNTUNED or session.config.search.mode != "measure":
            return self._build(captured, session, None if known is UNTUNED else Measured(known))

        def make(values: Sequence[Any]) -> Run:
            return self._build(captured, session, Measured(tuner.tune_if_possible(captured, subject, values, session)))

        return AtFirstCall(make)

    def _build(self, captured: Captured, session: Session, measured: Measured | None) -> Run:
        module, phase, roles, graph_id = captured.module, captured.phase, captured.roles, captured.id
        try:
            constants = self._constants(captured, session)
            if constants:
                return FrozenGraph(module, phase, graph_id, roles, constants, session, self._keep, measured)
            placed = Placer(phase, roles, session, measured)(module, graph_id)
        except Exception as error:
            if session.config.on_failure == "raise":
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


def _run_eager(module: torch.fx.GraphModule, arguments: list[Any]) -> Sequence[Any]:
    values = list(arguments)
    arguments.clear()
    return module.forward(*values)
