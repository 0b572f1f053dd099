"""Capture: from Dynamo's graph to the ATen graphs of inference, forward and backward.

Place: first stage of the pipeline.
Input: what torch.compile hands to a backend. Output: the callable that torch runs; each ATen graph goes through
``compile_graph`` once, or was found in torch's cache.
Invariants: parameters and buffers stay inputs of every graph; nothing is decomposed beyond what AOTAutograd does by
itself; the backward compiler is safe to call twice for one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import InputRole, Phase
from mixbackend.contracts.torch_compat import (
    StoredResults,
    aot_compile,
    input_part,
    input_position,
    is_static_input,
    is_tangent,
    partition_with_min_cut,
    source_name,
    without_dispatch_modes,
    written_when_run,
)
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.output_offsets import Run, traced_offsets
from mixbackend.graph.passes import TRACED, RunPass, joint_passes, run_pass, run_passes
from mixbackend.graph.traced import Traced

GraphCompiler = Callable[[Traced], Run]


def capture(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: Callable[[Traced], Any],
    prepare_joint: Callable[[torch.fx.GraphModule], None],
    run: RunPass = run_pass,
    stored: StoredResults | None = None,
) -> Any:
    """Capture a Dynamo graph and compile each ATen graph that comes of it.

    Args:
        graph_module: Dynamo's graph; weights are among its placeholders.
        example_inputs: one value per placeholder.
        compile_graph: called with each ATen graph; what it returns takes the graph's inputs in one list.
        prepare_joint: called with a joint graph before it is split; may mark what to save.
        run: runs each pass on Dynamo's graph and on the joint graph.
        stored: how results are found in torch's cache; ``None`` if they are neither looked for nor kept.
    """
    run_passes(TRACED, graph_module, run)
    weights = _weights(graph_module)
    outputs: dict[Phase, int] = {"backward": 0}

    def compiler(phase: Phase) -> Callable[[torch.fx.GraphModule, Any], Any]:
        def compile_captured(captured: torch.fx.GraphModule, fake_inputs: Any) -> Any:
            return compile_graph(Traced(captured, phase, _roles(captured, phase, weights), outputs.get(phase)))

        return compile_captured

    def partition(joint: torch.fx.GraphModule, inputs: Any, **keywords: Any) -> Any:
        outputs["forward"] = keywords["num_fwd_outputs"]
        with without_dispatch_modes():
            run_passes(joint_passes(keywords["num_fwd_outputs"]), joint, run)
            prepare_joint(joint)
        return partition_with_min_cut(joint, inputs, **keywords)

    return aot_compile(
        graph_module,
        list(example_inputs),
        forward=compiler("forward"),
        backward=compiler("backward"),
        inference=compiler("inference"),
        partition=partition,
        stored=None if _holds_tensors(graph_module) else stored,
    )


def run_of(traced: Traced, compile_graph: GraphCompiler) -> Run:
    """Compile a traced graph, with results as torch expects them: where they begin, and what is a view of what."""
    # Real tensors are touched while compiling; AOTAutograd's fake mode must not see them. A backward may be compiled
    # long after AOTAutograd has returned.
    with without_dispatch_modes(), written_when_run():
        laid = traced_offsets(traced.module, traced.outputs)
        run = laid(compile_graph(traced))
    if traced.phase == "forward" and traced.outputs is not None:
        return _without_views(run, traced.outputs)
    return run


def _holds_tensors(graph_module: torch.fx.GraphModule) -> bool:
    """Whether a Dynamo graph has tensors that are no inputs: torch's key of a graph does not tell their values."""
    names = (str(node.target) for node in graph_module.graph.find_nodes(op="get_attr"))
    return any(isinstance(getattr(graph_module, name, None), torch.Tensor) for name in names)


def _without_views(run: Run, outputs: int) -> Run:
    """A forward with no output that is a view of another one for autograd: such a view would take part in the history
    that its base is given, also where it was detached. They share memory as before."""

    def apart(arguments: list[Any]) -> Sequence[Any]:
        results = list(run(arguments))
        mine = results[:outputs]
        for place, value in enumerate(mine):
            base = value._base if isinstance(value, torch.Tensor) else None
            if base is not None and any(base is other for other in mine):
                results[place] = value.detach()
        return results

    return apart


def _weights(graph_module: torch.fx.GraphModule) -> dict[int, PlaceholderRole]:
    """Parameters and buffers among Dynamo's placeholders, by position."""
    weights: dict[int, PlaceholderRole] = {}
    for position, node in enumerate(graph_module.graph.find_nodes(op="placeholder")):
        source = source_name(node)
        if "_parameters[" in source:
            weights[position] = PlaceholderRole(InputRole.PARAMETER, source)
        elif is_static_input(node) or "_buffers[" in source:
            weights[position] = PlaceholderRole(InputRole.BUFFER, source)
    return weights


def _roles(
    captured: torch.fx.GraphModule, phase: Phase, weights: dict[int, PlaceholderRole]
) -> dict[str, PlaceholderRole]:
    roles: dict[str, PlaceholderRole] = {}
    for node in captured.graph.find_nodes(op="placeholder"):
        position = input_position(node)
        if position in weights:
            weight = weights[position]
            roles[node.name] = replace(weight, source=f"{weight.source}{input_part(node)}")
        elif not isinstance(node.meta.get("val"), torch.Tensor):
            roles[node.name] = PlaceholderRole(InputRole.SYMBOL)
        elif phase == "backward":
            role = InputRole.TANGENT if is_tangent(node) else InputRole.SAVED
            roles[node.name] = PlaceholderRole(role)
    return roles
