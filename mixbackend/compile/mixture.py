"""``Mixture``: the object that ``torch.compile(backend=...)`` calls.

Place: the outermost layer; made by ``mixture_of`` for ``mixbackend.auto``, one per configuration.
Input: Dynamo's graphs with ``mode`` and ``options``. Output: callables for torch, and reports for people.
Invariants: a graph that cannot be compiled by us runs in eager, with an event, unless the policy is to raise. Copies of
it are the object itself, and pickled it is its configuration: in another process the object of that configuration.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from mixbackend import registry
from mixbackend.backends.common import forks
from mixbackend.compile.compiled_graphs import CompiledGraphs
from mixbackend.compile.driver import compile_graph
from mixbackend.compile.frame_events import frame_events
from mixbackend.compile.joint_agreement import mark_as_agreed
from mixbackend.compile.open_environment import open_environment
from mixbackend.compile.saved_caches import offer_to_save
from mixbackend.compile.stages import StageDriver
from mixbackend.configuration import Config, load_config
from mixbackend.configuration.load import Source
from mixbackend.contracts import MixbackendError, Phase, PlacementError, RegionTextError
from mixbackend.contracts.torch_compat import forget_cuda_graphs, trace_artifact
from mixbackend.execute.kernel_processes import expect_kernels
from mixbackend.execute.run_function import Run
from mixbackend.graph.capture import capture
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.identity import Captured
from mixbackend.graph.traced import Traced
from mixbackend.host.behind_budget import WorkBehind
from mixbackend.host.full_collections import full_collections_later
from mixbackend.host.warm_up import WarmUp
from mixbackend.plan.environment import Environment
from mixbackend.plan.joint_decision import JointDecision
from mixbackend.plan.rematerialization import joint_key, mark_as_decided
from mixbackend.reporting import Event, Report
from mixbackend.select.decision import UNTUNED, Decision
from mixbackend.select.live.steps import situation, why_not
from mixbackend.storage import remembers

if TYPE_CHECKING:
    from mixbackend.locking.model import MadeWith

logger = logging.getLogger("mixbackend")

_MEASURES: Mapping[str, bool] = {
    "default": False,
    "reduce-overhead": False,
    "max-autotune": True,
    "max-autotune-no-cudagraphs": True,
}
"""Modes of torch.compile, and whether candidates are measured in them."""

_PAUSE_S = 0.1
"""Between calls of a warm-up, at most, while something compiles behind them: calls would take the cores from it."""
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
        self._lock = forks.long_reentrant_lock()
        self._environments: dict[tuple[Config, bool], Environment] = {}
        self._graphs = CompiledGraphs()
        self._joint_decisions: dict[str, JointDecision] = {}
        self._warm_up = WarmUp()
        if torch.cuda.is_available() and not remembers(config.cache.dir):
            expect_kernels()

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
        # What torch's class of results comes with is loaded by the first compilation, not by ``auto()``.
        from mixbackend.compile.stored_graph import Request, StoredGraph, asked_by, results_of

        with full_collections_later(), asked_by(self.compiler):
            environment = self.environment_for(mode, options)
            for event in frame_events(graph_module):
                environment.events.append(event)
            stored, request = results_of(environment), Request(self.compiler, mode, options)
            compile_graph = functools.partial(self._compiled, environment)
            # AOTAutograd compiles a backward when it wants to, and asks how to split a joint graph.
            return capture(
                graph_module,
                example_inputs,
                functools.partial(StoredGraph.compiled, request, compile_graph, stored is not None),
                lambda joint: self._prepare_joint(joint, environment),
                StageDriver("joint", environment.debug).run_pass,
                stored,
            )

    def compiler(self, mode: str | None, options: Mapping[str, Any] | None) -> Callable[[Traced], Run]:
        """What compiles traced graphs with a mode and options of torch.compile."""
        return functools.partial(self._compiled, self.environment_for(mode, options))

    def __reduce__(self) -> tuple[Any, ...]:
        return mixture_of, (self.config,)

    def __copy__(self) -> Mixture:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Mixture:
        # It is copied with compiled modules and with keyword arguments of torch.compile; its locks cannot be copied.
        return self

    def compile_captured(
        self,
        module: torch.fx.GraphModule,
        phase: Phase,
        roles: dict[str, PlaceholderRole],
        decision: Decision = UNTUNED,
    ) -> Run:
        """Compile an ATen graph that was captured elsewhere, as was decided for it."""
        captured = Captured(module, phase, roles, self._graphs.new_id(phase))
        executable = compile_graph(captured, self.environment(self.config), decision)
        self._graphs.keep(executable)
        return executable

    def _compiled(self, environment: Environment, traced: Traced) -> Run:
        graph_id = self._graphs.new_id(traced.phase)
        captured = Captured(traced.module, traced.phase, dict(traced.roles), graph_id, traced.sharing)
        executable = compile_graph(captured, environment)
        self._graphs.keep(executable)
        offer_to_save(environment)
        trace_artifact(f"mixbackend_report_{graph_id}", "string", lambda: str(Report(tuple(executable.records()))))
        # Torch holds this as long as the model lives; the report keeps what was placed.
        held = functools.partial(executable)
        weakref.finalize(held, executable.release).atexit = False
        return held

    def environment_for(self, mode: str | None, options: Mapping[str, Any] | None) -> Environment:
        """What graphs share that are compiled with this mode and these options of torch.compile."""
        if mode is not None and mode not in _MEASURES:
            raise MixbackendError(what=f"unknown mode {mode!r}", hint=f"use {', '.join(_MEASURES)}")
        config = self.config.with_options(options) if options else self.config
        if mode is not None and _MEASURES[mode]:
            config = config.with_options({"search.mode": "measure"})
        records = mode in _MODES_WITH_GRAPHS and torch.cuda.is_available()
        environment = self.environment(config, records)
        if mode in _MODES_WITH_GRAPHS and not records:
            detail = f"mode {mode!r} runs without CUDA graphs: torch finds no CUDA device"
            environment.events.append(Event("fallback", "", "", "", detail))
        hold = why_not(situation(config.select == "off"))
        return environment.for_good() if hold is not None and hold.for_good else environment

    def report(self, *, advice: bool = False) -> Report:
        """What this object compiled so far.

        Args:
            advice: also say which refusals cost most; places each graph again a few times.
        """
        graphs = self._graphs.records(advice=advice)
        with self._lock:
            environments = list(self._environments.values())
        events = tuple(event for environment in environments for event in environment.events.events())
        found = (info for environment in environments for info in environment.skipped)
        skipped = tuple(dict.fromkeys(found)) if environments else registry.skipped(self.config.backends)
        behind = WorkBehind.together(item.background.standing() for item in environments if item.background.on)
        return Report(graphs, events, self.config.preferences(), skipped, behind)

    def joint_decisions(self) -> dict[str, JointDecision]:
        """What joint graphs save for the backward, by their keys, for a lock file; empty unless something measures."""
        with self._lock:
            return dict(self._joint_decisions)

    def made_with(self) -> MadeWith:
        """What plans of this object are made with, for a lock file."""
        from mixbackend.locking.differences import made_with

        return made_with(self.environment(self.config).backends)

    def check_lock(self, made_by: str) -> None:
        """Raise if what was compiled is not what the lock file says.

        Args:
            made_by: the command that runs: all graphs of the file that it made must have come up.

        Raises:
            LockError: with every difference of every graph.
        """
        lock = self.environment(self.config).lock
        if lock is not None:
            lock.check(made_by)

    def settled(self, timeout_s: float = 0.0) -> bool:
        """Whether no graph tries other programs any more, and nothing is behind; waits so long for what is behind.

        Trying goes on in the calls of graphs alone: while it is not settled, calls settle it, not time.
        """
        with self._lock:
            environments = list(self._environments.values())
        end = time.monotonic() + timeout_s
        quiet = [item.background.settled(max(0.0, end - time.monotonic())) for item in environments]
        return all(quiet) and all(graph.settled for graph in self._graphs)

    def warm_up(self, call: Callable[[], object], longest_s: float = 60.0) -> bool:
        """Call until every graph runs what is fastest here, or the time is over; the last one ends by ``stop_trying``.

        For what happens before users come: these calls may be trying altogether (in others it is 5% of their time), and
        workers may have half of the cores meanwhile, of which ``background.budget_s`` counts nothing. While they
        compile, calls leave pauses.

        Args:
            call: one call of what was compiled, or several that belong together, with inputs like those to come. The
                first may compile it. What it changes is changed.
            longest_s: seconds after which no further call is made.

        Returns:
            Whether everything was tried.

        Raises:
            Exception: what a call raised.
        """
        end = time.monotonic() + longest_s
        try:
            with self._warm_up.opened():
                call()
                while not self.settled(_PAUSE_S) and time.monotonic() < end:
                    call()
            return self.settled()
        finally:
            if not self._warm_up.goes_on:
                self.stop_trying()

    def stop_trying(self) -> None:
        """Let every graph that was compiled so far run as it runs now: nothing is tried in calls or compiled behind.

        What was compared is remembered; what was not is tried by later processes. Graphs that are compiled afterwards
        are tried again. The next calls let go of memory that a comparison had.
        """
        for graph in self._graphs:
            graph.stop_trying()
        with self._lock:
            environments = list(self._environments.values())
        for environment in environments:
            environment.background.close()

    def time_regions(self) -> None:
        """Time the next calls of every region of every graph, for the report."""
        for graph in self._graphs:
            graph.time_regions()

    def reset(self) -> None:
        """Forget all compiled graphs and events; called by ``torch._dynamo.reset()``."""
        with self._lock:
            if any(environment.records for environment in self._environments.values()):
                forget_cuda_graphs()
            self._graphs.clear()
            self._joint_decisions.clear()
            for environment in self._environments.values():
                environment.background.close()
            self._environments.clear()

    def _prepare_joint(self, joint: torch.fx.GraphModule, environment: Environment) -> None:
        try:
            self._decide_joint(joint, environment)
        except Exception as error:
            if environment.config.on_failure == "raise" or environment.config.lock.frozen:
                raise
            environment.events.append(Event("fallback", "joint", "", "", f"split as torch would: {error}"))

    def _decide_joint(self, joint: torch.fx.GraphModule, environment: Environment) -> None:
        """Mark what a joint graph saves: as locked, or by estimates; remember that if it may be locked."""
        key = ""
        if environment.lock is not None or environment.config.search.mode == "measure":
            with contextlib.suppress(RegionTextError):
                key = joint_key(joint)
        locked = environment.lock.joint_decision(key) if environment.lock is not None and key else None
        if environment.lock is not None and locked is not None:
            try:
                mark_as_decided(joint, locked)
                return
            except PlacementError as error:
                environment.lock.settle("joint", [error.what])
        decision = mark_as_agreed(joint, environment)
        with self._lock:
            self._joint_decisions.update({key: decision} if key else {})

    def environment(self, config: Config, records: bool = False) -> Environment:
        """What graphs of a configuration share; the same at every call, until ``reset``."""
        with self._lock:
            if (config, records) not in self._environments:
                self._environments[config, records] = open_environment(config, records, warm_up=self._warm_up)
            return self._environments[config, records]


_of_process = forks.lock()
_mixtures: dict[Config, Mixture] = {}


def mixture_of(source: Source = None) -> Mixture:
    """The object of this process for a configuration; equal configurations give the same object.

    Raises:
        ConfigurationError: see ``load_config``.
    """
    config = load_config(source)
    with _of_process:
        if config not in _mixtures:
            _mixtures[config] = Mixture(config)
        return _mixtures[config]


def all_mixtures() -> tuple[Mixture, ...]:
    """What ``mixture_of`` made in this process."""
    with _of_process:
        return tuple(_mixtures.values())
