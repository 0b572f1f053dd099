"""Stitch: compiled regions as one flat Python function.

Place: last stage of the pipeline.
Input: the captured graph, its regions (or pieces of several) in execution order, and one callable for each. Output: the
function and its source. The function takes the list of graph inputs, empties it, and returns the graph's outputs.
Invariants: steps run in the order of ``execute.schedule``, which honours every order edge of the graph; every tensor is
dropped after its last use; no dictionary is touched per call.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import OpGraph
from mixbackend.contracts.describe_op import as_tuple
from mixbackend.execute.schedule import Piece, Step, schedule

RegionCall = Callable[[list[Any]], Sequence[Any]]

Line = tuple[str, tuple[str, ...]]
"""A line of the function, and the names that it reads."""

_AGAIN = "again__"
"""Begins the names of values that a piece makes, too, at another time."""


@dataclass(frozen=True)
class Stitched:
    """The generated function.

    Attributes:
        run: the function.
        source: its text.
        calling: makes the same function of other callables for the regions.
    """

    run: Callable[[list[Any]], Sequence[Any]]
    source: str
    calling: Callable[[Sequence[RegionCall]], Callable[[list[Any]], Sequence[Any]]]


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
    calling = partial(_calling, source, writer.constants, f"<mixbackend {graph.id}>")
    return Stitched(calling(calls), source, calling)


def _calling(
    source: str, constants: Mapping[str, Any], filename: str, calls: Sequence[RegionCall]
) -> Callable[[list[Any]], Sequence[Any]]:
    namespace = {**constants, **{f"region_{index}": call for index, call in enumerate(calls)}}
    return load_function(source, namespace, filename)


def load_function(source: str, namespace: dict[str, Any], filename: str) -> Callable[[list[Any]], Sequence[Any]]:
    """Compile the text of ``function_text``; the namespace holds what it mentions."""
    exec(compile(source, filename, "exec"), namespace)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    # Out of its own globals: what is let go of is free at once, without a collection of garbage.
    return namespace.pop("run")


def call_text(index: int, piece: Piece) -> str:
    """The line that calls ``region_<index>``."""
    targets = ", ".join(piece.outputs)
    left = f"{targets}{',' if len(piece.outputs) == 1 else ''} = " if piece.outputs else ""
    return f"{left}region_{index}([{', '.join(piece.inputs)}])"


def function_text(
    arguments: Sequence[str], steps: Sequence[Line], result: str, used: Sequence[str], kept: frozenset[str]
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
        self.constants: dict[str, Any] = {}

    def write(self) -> str:
        placeholders = [node.name for node in self._graph_module.graph.find_nodes(op="placeholder")]
        for item in self._graph.inputs:
            if item.name not in placeholders:
                self.constants[item.name] = _attribute(self._graph_module, str(self._nodes[item.name].target))
        steps = schedule(self._graph, self._regions)
        again = frozenset(step.node for step in steps if step.again)
        lines = [self._line(step, again) for step in steps]
        returned = next(iter(self._graph_module.graph.find_nodes(op="output"))).args[0]
        result, used = self._expression(as_tuple(returned), again)
        return function_text(placeholders, lines, result, used, frozenset(self.constants))

    def _line(self, step: Step, again: frozenset[str]) -> Line:
        if step.piece is not None:
            region = self._regions[step.piece]
            return call_text(step.piece, region), region.inputs
        node = self._nodes[step.node]
        function = f"function_{node.name}"
        self.constants[function] = node.target
        text, used = self._expression(tuple(node.args), again)
        keywords = ""
        for key, value in node.kwargs.items():
            keyword, names = self._expression(value, again)
            keywords += f", {key}={keyword}"
            used += names
        name = f"{_AGAIN}{node.name}" if step.again else node.name
        return f"{name} = {function}(*{text}{keywords})", used

    def _expression(self, value: Any, again: frozenset[str] = frozenset()) -> tuple[str, tuple[str, ...]]:
        """Text of a value, and the names in it; what is made once more has another name in steps of its own."""
        if isinstance(value, torch.fx.Node):
            name = f"{_AGAIN}{value.name}" if value.name in again else value.name
            return name, (name,)
        if isinstance(value, (tuple, list)):
            parts = [self._expression(item, again) for item in value]
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
