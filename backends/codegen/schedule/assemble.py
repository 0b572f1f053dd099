"""Assemble: kernels become a program.

Place: last pass; a target compiles the program, ``runner`` runs it.
Input: kernels with the names of their graph, in order. Output: a ``Program`` of canonical kernels and a memory plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from mixbackend.backends.codegen.ir.kernel import AnyKernel, TemplateKernel
from mixbackend.backends.codegen.ir.program import KernelCall, OutputBuffer, Program, Refusal
from mixbackend.backends.codegen.ir.stages import (
    AliasOutput,
    GraphOutput,
    Returned,
    StageGraph,
    StridedInput,
    destinations,
)
from mixbackend.backends.codegen.schedule.group import Layout
from mixbackend.backends.codegen.schedule.memory import Usage, aligned_bytes, plan_workspace
from mixbackend.backends.codegen.schedule.parameters import canonical
from mixbackend.backends.codegen.schedule.templates import canonical_template


def assemble(
    graph: StageGraph,
    kernels: Sequence[Sequence[tuple[AnyKernel, tuple[str, ...]]]],
    layouts: Mapping[str, Layout],
    refusals: Sequence[Refusal],
) -> Program:
    """Name, parametrise and plan.

    Args:
        graph: source of the program's inputs and outputs.
        kernels: in order, those that may run at once together, each with the graph nodes it computes.
        layouts: of every tensor that lives in memory.
        refusals: of all passes, for the report.
    """
    results = {item.tensor for item in graph.outputs if isinstance(item, GraphOutput)}
    inputs = {item.name for item in graph.inputs if isinstance(item, StridedInput)}
    usages = [
        Usage.of((buffer.name, buffer.access) for kernel, _ in together for buffer in kernel.buffers)
        for together in kernels
    ]
    between = {name: layout for name, layout in layouts.items() if name not in inputs | results}
    sizes = {name: (layout.type.dtype, aligned_bytes(layout)) for name, layout in between.items()}
    workspace, total = plan_workspace(usages, sizes)
    calls = [
        _call(kernel, origins, number if len(together) > 1 else None)
        for number, together in enumerate(kernels)
        for kernel, origins in together
    ]
    returned = (item for item in graph.outputs if isinstance(item, AliasOutput) or item.destination is None)
    outputs = tuple(_output(item, layouts) for item in returned)
    written = tuple(destinations(graph).values())
    return Program(graph.inputs, outputs, workspace, total, tuple(calls), tuple(refusals), written, graph.draws)


def _call(kernel: AnyKernel, origins: tuple[str, ...], launch: int | None) -> KernelCall:
    made = canonical_template(kernel) if isinstance(kernel, TemplateKernel) else canonical(kernel)
    is_known = all(sympy.sympify(value).is_Integer for value in made.parameters)
    return KernelCall(made.kernel, made.buffers, made.parameters, made.numbers, origins, launch if is_known else None)


def _output(output: GraphOutput | AliasOutput, layouts: Mapping[str, Layout]) -> OutputBuffer | AliasOutput:
    if isinstance(output, AliasOutput):
        return output
    type_ = layouts[output.tensor].type
    returned = output.returned or Returned(type_.sizes, output.strides)
    return OutputBuffer(output.tensor, type_.dtype, returned.sizes, returned.strides)
