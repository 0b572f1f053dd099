"""The driver: a captured graph's way to running code.

Place: between ``graph.capture`` and torch. Input: a captured graph, what the graphs of a configuration share. Output:
an ``Executable``.
Subgraphs of higher-order ops go the same way first: a body is a graph like others, with an executable of its own.
Invariants: a graph that cannot be compiled by us runs in eager, with an event, unless the policy is to raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mixbackend.compile.build import tell_unbuilt
from mixbackend.compile.executable import Executable, run_by_eager
from mixbackend.compile.propose import Outlook, propose
from mixbackend.compile.sized_graph import Row
from mixbackend.compile.stages import StageDriver
from mixbackend.contracts.compiled_body import CompiledBody
from mixbackend.execute.unwritten_values import has_negated_values, write_out_zeros
from mixbackend.execute.weights.constant_weights import constant_weights
from mixbackend.graph.bodies import subgraphs_of, with_bodies
from mixbackend.graph.identity import Captured
from mixbackend.graph.misstated_sizes import has_misstated_sizes
from mixbackend.graph.prepared import Prepared, prepare
from mixbackend.plan.environment import Environment
from mixbackend.registry import BackendInfo
from mixbackend.reporting import Event
from mixbackend.select.decision import Decision

Propose = Callable[[Captured, Prepared, Environment, "Decision | None"], Outlook]


def compile_graph(
    captured: Captured, environment: Environment, decision: Decision | None = None, proposed: Propose | None = None
) -> Executable:
    """Compile a captured graph.

    Args:
        captured: the graph.
        environment: configuration, backends, costs and caches.
        decision: what was decided about it elsewhere; ``None`` to ask the lock file and what was measured.
        proposed: says how it is placed, as a package does, which has plans of its own; ``None`` for ``propose``.

    Raises:
        MixbackendError: failures are to be raised, or a required backend cannot be had.
    """
    write_out_zeros(captured.module)
    reason = why_only_eager(captured)
    if reason:
        environment.events.append(Event("fallback", captured.id, "", "", f"eager runs the graph: {reason}"))
        return run_by_eager(captured, environment)
    try:
        captured = _with_bodies(captured, environment)
        prepared = prepared_graph(captured, environment)
        outlook = (proposed or propose)(captured, prepared, environment, decision)
        # Where measuring needs values first, the first call builds what it decides.
        first = None if outlook.sized is None else Row.begun(outlook.sized, captured.id, environment)
    except Exception as error:
        tell_unbuilt(captured.id, error, environment)
        return run_by_eager(captured, environment)
    return Executable(outlook, first, environment)


def _with_bodies(captured: Captured, environment: Environment) -> Captured:
    """The graph with its subgraphs compiled, each as a captured graph: their seconds are the price of their ops."""
    compiled: dict[str, CompiledBody] = {}
    for use in subgraphs_of(captured):
        run = compile_graph(use.captured, environment)
        body = CompiledBody(use.captured.module, run, use.captured.id, run.estimated_s)
        compiled.update(dict.fromkeys(use.attributes, body))
    return with_bodies(captured, compiled) if compiled else captured


def why_only_eager(captured: Captured) -> str:
    """Why regions of a graph would not compute what it does; empty if they would."""
    if has_negated_values(captured.module):
        return "it has views that are negated when they are read"
    if has_misstated_sizes(captured.module):
        return "torch states a known size for a result whose size depends on values"
    return ""


def prepared_graph(captured: Captured, environment: Environment) -> Prepared:
    """A graph as it is placed: normal, and without what depends on constant weights alone."""
    asked = captured.module, captured.phase, captured.roles, environment.config.weights, environment.owns_weights
    constants, reason = constant_weights(*asked)
    if reason:
        environment.events.append(Event("fallback", "", "", "", _weights_are_live(reason, environment.skipped)))
    driver = StageDriver(captured.id, environment.debug)
    return driver.run("capture", prepare, captured, constants, driver.run_pass, show=_show_graph)


def _weights_are_live(reason: str, skipped: Iterable[BackendInfo]) -> str:
    """All that is lost for one reason, in one sentence."""
    idle = [info.name for info in skipped if info.reason == reason]
    told = f", and no part is taken by {', '.join(idle)}" if idle else ""
    return f"weights are live inputs{told}: {reason}"


def _show_graph(prepared: Prepared) -> str:
    return prepared.module.print_readable(print_output=False)
