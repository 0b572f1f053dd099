"""Stitch: compiled regions as one flat Python function.

Place: last stage of the pipeline.
Input: the captured graph, its regions in execution order, and one callable per region. Output: the function and its
source. The function takes the list of graph inputs, empties it, and returns the graph's outputs.
Invariants: regions run in the plan's order; numbers are computed as soon as somebody needs them; every tensor is
dropped after its last use; no dictionary is touched per call.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import OpGraph
from mixbackend.runtime.regions import BoundRegion

RegionCall = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Stitched:
    """The generated function and its text."""

    run: Callable[[list[Any]], Sequence[Any]]
    source: str


def stitch(
    graph_module: torch.fx.GraphModule,
    graph: OpGraph,
    regions: Sequence[BoundRegion],
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
    filename = f"<mixbackend {graph.id}>"
    namespace: dict[str, Any] = dict(writer.constants)
    namespace.update({f"region_{index}": call for index, call in enumerate(calls)})
    exec(compile(source, filename, "exec"), namespace)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return Stitched(namespace["run"], source)


class _Writer:
    """Writes the function's lines; one instance per function."""

    def __init__(self, graph_module: torch.fx.GraphModule, graph: OpGraph, regions: Sequence[BoundRegion]) -> None:
        self._graph_module = graph_module
        self._nodes = {node.name: node for node in graph_module.graph.nodes}
        self._graph = graph
        self._regions = regions
        self._steps: list[tuple[str, tuple[str, ...]]] = []
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
        return self._assemble(placeholders, result, used)

    def _region(self, index: int, region: BoundRegion) -> None:
        for name in region.inputs:
            self._number(name)
        targets = ", ".join(region.outputs)
        left = f"{targets}{',' if len(region.outputs) == 1 else ''} = " if region.outputs else ""
        self._steps.append((f"{left}region_{index}([{', '.join(region.inputs)}])", region.inputs))
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

    def _assemble(self, placeholders: Sequence[str], result: str, used: tuple[str, ...]) -> str:
        last: dict[str, int] = dict.fromkeys(placeholders, -1)
        for index, (_, names) in enumerate(self._steps):
            last.update(dict.fromkeys(names, index))
        last.update(dict.fromkeys(used, len(self._steps)))
        dying = _dying_after(last, frozenset(self.constants))
        lines = ["def run(arguments):"]
        if placeholders:
            lines.append(f"    {', '.join(placeholders)}{',' if len(placeholders) == 1 else ''} = arguments")
        lines.append("    arguments.clear()")
        lines += [f"    del {', '.join(dying[-1])}"] if dying.get(-1) else []
        for index, (text, _) in enumerate(self._steps):
            lines.append(f"    {text}")
            lines += [f"    del {', '.join(dying[index])}"] if dying.get(index) else []
        lines.append(f"    return {result}")
        return "\n".join(lines) + "\n"


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
