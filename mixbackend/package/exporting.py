"""``mixbackend.export``: from programs of ``torch.export`` to one file.

Place: behind ``mixbackend/__init__.py`` and ``mixbackend export``. Input: programs by the name of their method. Output:
a package; the report of what was compiled for it.
Each graph goes the way of ``compile.driver``, without trying other plans in calls; it is run once with the program's
own example, every region held against eager; then its plans, and every artifact that came up on the way, are written.
Where plans are to be measured, that first call does it.
Invariants: the caller's model is read alone; the file appears whole, or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from mixbackend.compile.driver import compile_graph
from mixbackend.compile.executable import Executable
from mixbackend.configuration import Config, load_config
from mixbackend.contracts import PackageError
from mixbackend.graph.identity import Captured
from mixbackend.package.arguments import Arguments
from mixbackend.package.container import written_package
from mixbackend.package.exported import ExportedGraph, exported_graph
from mixbackend.package.model import GraphText, PackagedGraph
from mixbackend.package.plans import graph_plan
from mixbackend.package.recording import recording_environment
from mixbackend.package.writing import CompiledProgram, Weights, write_package
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Report

Programs = Mapping[str, "ExportedProgram | Sequence[ExportedProgram]"]
FORWARD = "forward"
"""Name of the method of a package that has one program."""


def export(
    programs: ExportedProgram | Programs,
    path: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | Config | None = None,
) -> Report:
    """Write a package: one file that runs without the model's code and without a compiler; see ``mixbackend.load``.

    Args:
        programs: a program of ``torch.export``, or several by the name of their method; of a method's programs, a call
            runs the first that its arguments fit.
        path: of the file.
        config: see ``mixbackend.auto``. Backends with regions that run only where they were compiled take no part.
            With ``search: {mode: measure}`` plans are measured with the program's own example, and the fastest is
            packaged.

    Raises:
        PackageError: a program cannot be in a package.
        ConfigurationError: see ``mixbackend.auto``.
    """
    given = load_config(config)  # type: ignore[arg-type]
    # Calls that would try other plans are not to come; everything is checked once, here.
    settled = given.with_options({"select": "off", "verify": {"when": "always"}, "background": "off"})
    environment, record = recording_environment(settled)
    methods = _methods(programs)
    weights = Weights()
    graphs = [
        _compiled(method, number, program, weights, environment)
        for method, own in methods.items()
        for number, program in enumerate(own)
    ]
    with written_package(Path(path)) as writer:
        write_package(writer, graphs, weights, environment, record)
    report = Report(
        tuple(item for graph in graphs for item in graph.executable.records()),
        environment.events.events(),
        given.preferences(),
        environment.skipped,
    )
    for graph in graphs:
        graph.executable.release()
    return report


def _methods(programs: Any) -> dict[str, tuple[ExportedProgram, ...]]:
    if not isinstance(programs, Mapping):
        programs = {FORWARD: programs}
    found = {str(name): tuple(own) if isinstance(own, (list, tuple)) else (own,) for name, own in programs.items()}
    wrong = [name for name, own in found.items() if not own]
    if wrong or not found:
        raise PackageError(f"there is no program to export{f' for {wrong[0]}' if wrong else ''}")
    return found


def _compiled(
    method: str, number: int, program: ExportedProgram, weights: Weights, environment: Environment
) -> CompiledProgram:
    """Compile a program and run it once with its example."""
    exported = exported_graph(program)
    names = weights.names(method, exported)
    traced = exported.text.read()
    graph_id = method if number == 0 else f"{method}.{number}"
    captured = Captured(traced.module, traced.phase, dict(traced.roles), graph_id, traced.sharing)
    identity = captured.identity
    with torch.no_grad():
        executable = compile_graph(captured, environment)
        _run_example(executable, exported, program)
        plan = graph_plan(executable, captured, environment)
    text = GraphText.of(exported.text)
    packaged = PackagedGraph(id=graph_id, graph=text, signature=exported.signature, weights=names, plan=plan)
    return CompiledProgram(method, packaged, executable, identity)


def _run_example(executable: Executable, exported: ExportedGraph, program: ExportedProgram) -> None:
    """What the program writes into stays the caller's: it gets copies."""
    if program.example_inputs is None:
        return
    args, kwargs = _copied(program.example_inputs)
    given = [tensor.clone() if name in exported.written else tensor for name, tensor in exported.weights.items()]
    executable([*given, *Arguments(exported.signature).bound(args, kwargs)])


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone(memory_format=torch.preserve_format)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return value
