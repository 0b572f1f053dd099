"""Stitch: compiled regions as one flat Python function.

Place: last stage of the pipeline.
Input: the captured graph, its regions (or pieces of several) in execution order, and one callable for each. Output: the
function and its source. The function takes the list of graph inputs, empties it, and returns the graph's outputs.
Invariants: regions run in the plan's order; numbers are computed as soon as somebody needs them; every tensor is
dropped after its last use; no dictionary is touched per call.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx

from mixbackend.contracts import OpGraph

RegionCall = Callable[[list[Any]], Sequence[Any]]


class Piece(Protocol):
    """What is called as one: a region, or several of them."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of captured nodes that it reads, in the order of its arguments."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of captured nodes that it computes."""
        ...


Step = tuple[str, tuple[str, ...]]
"""A line of the function, and the names that it reads."""


@dataclass(frozen=True)
class Stitched:
    """The generated function and its text."""

    run: Callable[[list[Any]], Sequence[Any]]
    source: str


def stitch(
    graph_module: torch.fx.GraphModule,
    graph: OpGraph,
    regions: Sequence[Piece],
    calls: Sequence[RegionCall],
) -> Stitched:
    """Generate the function that runs a placed graph.

    Args:
        graph_module: the captured graph.
        graph: its description.
        regions: all regions, in execution order.
        calls: one callable per region.
    """
    writer = _Writer(graph_module, graph, regions)
    source = writer.write()
    namespace: dict[str, Any] = dict(writer.constants)
    namespace.update({f"region_{index}": call for index, call in enumerate(calls)})
    return Stitched(load_function(source, namespace, f"<mixbackend {graph.id}>"), source)


def load_function(source: str, namespace: dict[str, Any], filename: str) -> Callable[[list[Any]], Sequence[Any]]:
    """Compile the text of ``function_text``; the namespace holds what it mentions."""
    exec(compile(source, filename, "exec"), namespace)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return namespace["run"]


def call_text(index: int, piece: Piece) -> str:
    """The line that calls ``region_<index>``."""
    targets = ", ".join(piece.outputs)
    left = f"{targets}{',' if len(piece.outputs) == 1 else ''} = " if piece.outputs else ""
    return f"{left}region_{index}([{', '.join(piece.inputs)}])"


def function_text(
    arguments: Sequence[str], steps: Sequence[Step], result: str, used: Sequence[str], kept: frozenset[str]
) -> str:
    """Text of ``run(arguments)``: all steps, each value dropped after its last use.

    Args:
        arguments: names of the values in the list that the function takes and empties.
        steps: in order.
        result: text of what it returns.
        used: names that the result mentions.
        kept: names of what is not the function's own to drop.
    """
    last: dict[str, int] = dict.fromkeys(arguments, -1)
    for index, (_, names) in enumerate(steps):
        last.update(dict.fromkeys(names, index))
    last.update(dict.fromkeys(used, len(steps)))
    dying = _dying_after(last, kept)
    lines = ["def run(arguments):"]
    if arguments:
        lines.append(f"    {', '.join(arguments)}{',' if len(arguments) == 1 else ''} = arguments")
    lines.append("    arguments.clear()")
    lines += [f"    del {', '.join(dying[-1])}"] if dying.get(-1) else []
    for index, (text, _) in enumerate(steps):
        lines.append(f"    {text}")
        lines += [f"    del {', '.join(dying[index])}"] if dying.get(index) else []
    lines.append(f"    return {result}")
    return "\n".join(lines) + "\n"


class _Writer:
    """Writes the function's lines; one instance per function."""

    def __init__(self, graph_module: torch.fx.GraphModule, graph: OpGraph, regions: Sequence[Piece]) -> None:
        self._graph_module = graph_module
        self._nodes = {node.name: node for node in graph_module.graph.nodes}
        self._graph = graph
        self._regions = regions
        self._steps: list[Step] = []
        self._done = {item.name for item in graph.inputs}
        self.constants: dict[str, Any] = {}

    def write(self) -> str:
        placeholders = [node.name for node in self._graph_module.graph.find_nodes(op="placeholder")]
        for item in self._graph.inputs:
            if item.name not in placeholders:
                self.constants[item.name] = _attribute(self._graph_module, str(self._nodes[item.name].target))
        for index, region in enumerate(self._regions):
            self._region(index, region)
        returned = next(iter(self._graph_module.graph.find_nodes(op="output"))).args[0]
        result, used = self._expression(tuple(returned) if isinstance(returned, (list, tuple)) else (returned,))
        return function_text(placeholders, self._steps, result, used, frozenset(self.constants))

    def _region(self, index: int, region: Piece) -> None:
        for name in region.inputs:
            self._number(name)
        self._steps.append((call_text(index, region), region.inputs))
        self._done.update(region.outputs)

    def _number(self, name: str) -> None:
        """Emit the number ``name`` and what it is computed from, unless it is there already."""
        if name in self._done:
            return
        self._done.add(name)
        node = self._nodes[name]
        for source in node.all_input_nodes:
            self._number(source.name)
        function = f"function_{name}"
        self.constants[function] = node.target
        text, used = self._expression(tuple(node.args))
        keywords = ", ".join(f"{key}={self._expression(value)[0]}" for key, value in node.kwargs.items())
        used += tuple(source.name for source in node.all_input_nodes)
        self._steps.append((f"{name} = {function}(*{text}{', ' + keywords if keywords else ''})", used))

    def _expression(self, value: Any) -> tuple[str, tuple[str, ...]]:
        if isinstance(value, torch.fx.Node):
            self._number(value.name)
            return value.name, (value.name,)
        if isinstance(value, (tuple, list)):
            parts = [self._expression(item) for item in value]
            inner = ", ".join(text for text, _ in parts)
            text = f"({inner},)" if len(parts) == 1 else f"({inner})"
            return text, tuple(name for _, names in parts for name in names)
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value), ()
        name = f"constant_{len(self.constants)}"
        self.constants[name] = value
        return name, ()


def _dying_after(last: Mapping[str, int], keep: frozenset[str]) -> dict[int, list[str]]:
    dying: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in keep:
            dying.setdefault(index, []).append(name)
    return dying


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module
