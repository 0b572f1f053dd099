"""Probes as compiled regions: traced, judged, compiled by the backend, ready to be timed.

Place: between the probes of a backend and ``backend_rates``.
Invariants: only what the backend claims is compiled; a probe that cannot be traced, compiled or run is left out with a
reason, whatever it raises; compiling stops when the time for it is spent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.calibrate.timing import Clock
from mixbackend.contracts import (
    Backend,
    CompiledRegion,
    InputRole,
    OpView,
    Probe,
    Region,
    Unsupported,
    check_verdict,
)
from mixbackend.contracts.rate_rows import rate_row
from mixbackend.contracts.region import RunFunction
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.regions import whole_region
from mixbackend.graph.trace import trace_graph
from mixbackend.host.undisturbed import undisturbed
from mixbackend.partitioner.work import flops_of


@dataclass(frozen=True)
class CompiledProbe:
    """A probe that a backend runs.

    Attributes:
        probe: what it stands for.
        row: of the rate tables, see ``contracts.rate_rows``.
        call: runs it once.
        views: its ops.
        tensors: how many tensors cross its boundary.
        compile_s: seconds that compiling took.
    """

    probe: Probe
    row: str
    call: Callable[[], object]
    views: tuple[OpView, ...]
    tensors: int
    compile_s: float


class ProbeRefusedError(Exception):
    """The backend does not claim an op of the probe."""


@dataclass(frozen=True)
class Compiled:
    """What became of probes.

    Attributes:
        probes: those that run.
        notes: one line for each that does not.
        left: those that there was no time for.
    """

    probes: tuple[CompiledProbe, ...]
    notes: tuple[str, ...]
    left: tuple[Probe, ...]


def compile_probes(
    backend: Backend,
    probes: Sequence[Probe],
    compile_budget_s: float,
    clock: Clock = time.perf_counter,
) -> Compiled:
    """Compile as many probes as there is time for, at least one."""
    compiled: list[CompiledProbe] = []
    notes: list[str] = []
    left: list[Probe] = []
    begin = clock()
    for probe in probes:
        label = f"{probe.op_class} {probe.dtype}"
        if clock() - begin > compile_budget_s:
            notes.append(f"{label}: not probed, {compile_budget_s:g} s of compiling are spent")
            left.append(probe)
            continue
        try:
            compiled.append(_compile(backend, probe, clock))
        except ProbeRefusedError as refusal:
            notes.append(f"{label}: not probed, {refusal}")
        except Exception as error:
            # A backend may raise anything; it keeps its prior for this class.
            notes.append(f"{label}: probe failed, {type(error).__name__}: {str(error).splitlines()[:1]}")
    return Compiled(tuple(compiled), tuple(notes), tuple(left))


def _compile(backend: Backend, probe: Probe, clock: Clock) -> CompiledProbe:
    with undisturbed():
        arguments = list(probe.inputs())
        roles = {position: PlaceholderRole(InputRole.PARAMETER) for position in probe.weights}
        roles |= {position: PlaceholderRole(InputRole.CONSTANT) for position in probe.constants}
        graph_module, graph = trace_graph(probe.function, arguments, roles=roles)
        region = whole_region(graph_module, graph)
        for view in region.views:
            verdict = check_verdict(backend.judge(view))
            if isinstance(verdict, Unsupported):
                raise ProbeRefusedError(f"{view.op} is refused: {verdict.code} {verdict.detail}".rstrip())
        by_name = dict(zip((item.name for item in graph.inputs), arguments, strict=True))
        ordered = [by_name[item.name] for item in region.inputs]
        begin = clock()
        pairs = zip(region.inputs, ordered, strict=True)
        constants = [value if item.role is InputRole.CONSTANT else None for item, value in pairs]
        run = bound_run(backend.compile(region), constants)
        seconds = clock() - begin
        results = run(ordered)
        _check_shapes(region, results)
    return CompiledProbe(
        probe,
        _row(probe, region.views),
        lambda: run(ordered),
        region.views,
        len(region.inputs) + len(region.outputs),
        seconds,
    )


def bound_run(compiled: CompiledRegion, constants: Sequence[Any]) -> RunFunction:
    """The code that would run in a model: bound to the constants if there are any and the backend binds.

    Args:
        constants: one entry per region input, ``None`` for those that are no constants.
    """
    if compiled.bind is None or all(value is None for value in constants):
        return compiled.run
    return compiled.bind(constants).run


def _row(probe: Probe, views: Sequence[OpView]) -> str:
    """The row of the heaviest op of the probe's class; the class itself if tracing turned the op into others."""
    mine = [view for view in views if view.op_class == probe.op_class]
    return rate_row(max(mine, key=flops_of)) if mine else probe.op_class


def _check_shapes(region: Region, results: Sequence[Any]) -> None:
    shapes = [tuple(result.shape) for result in results]
    expected = [item.meta.shape for item in region.outputs]
    if shapes != expected:
        raise RuntimeError(f"returned shapes {shapes} instead of {expected}")
