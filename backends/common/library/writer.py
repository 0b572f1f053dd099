"""Writer: a region's graph as one flat Python function of library calls.

Place: between a library's rules and ``region``. Input: a region and a ``Library``. Output: ``Written``: text, the
objects it mentions, what has to be prepared of constants, and whether its results have the traced strides for sure.
Method: one line per node that is needed; matched patterns are one line at their root; values are freed after their last
use. Values that follow from constants alone are computed when the region is bound, not in the function.
Invariants: no dictionaries, no interpretation in the written function; equal regions give equal text.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.backends.common.library.rules import Library
from mixbackend.backends.common.library.scope import Prepared, Scope
from mixbackend.contracts import InputRole, Region, TensorMeta
from mixbackend.contracts.describe_op import operator_name, value_meta

_METHODS = {
    "aten.reshape.default": "reshape",
    "aten.t.default": "t",
    "aten.transpose.int": "transpose",
    "aten.permute.default": "permute",
    "aten.unsqueeze.default": "unsqueeze",
    "aten.squeeze.dim": "squeeze",
    "aten.select.int": "select",
}
"""Views with a method that means the same and costs a third of the operator's call."""

_LAYOUT_KEEPING = frozenset({*_METHODS, "aten.expand.default", "aten.squeeze.dims", "aten.squeeze.default", "getitem"})
"""Ops with a result that has the traced strides if their input has."""


@dataclass(frozen=True)
class Written:
    """One generated function, not yet compiled.

    Attributes:
        text: source of ``make``, which takes what is prepared, in order, and returns ``run``.
        values: objects that the text mentions.
        prepared: see ``scope.Prepared``.
        derived: nodes that are computed from constants when the region is bound, in order.
        faithful: whether all results have the traced strides where strides matter, whatever comes in.
    """

    text: str
    values: Mapping[str, Any]
    prepared: tuple[Prepared, ...]
    derived: tuple[torch.fx.Node, ...]
    faithful: bool


def write_function(region: Region, library: Library, bound: bool) -> Written:
    """Write a region as Python.

    Args:
        bound: whether inputs with the role ``CONSTANT`` are known before the first call.
    """
    return _Writer(region, library, bound).write()


@dataclass(frozen=True)
class _Line:
    name: str
    text: str
    reads: frozenset[str]


class _Writer:
    def __init__(self, region: Region, library: Library, bound: bool) -> None:
        self._region = region
        self._library = library
        self._nodes = {node.name: node for node in region.graph_module.graph.nodes}
        self._given = [item.name for item in region.inputs]
        self._derived = _derived(region) if bound else ()
        known = {item.name for item in region.inputs if item.role is InputRole.CONSTANT} if bound else set()
        exact = frozenset(item.name for item in region.outputs if item.exact_stride)
        constants = frozenset(known | {node.name for node in self._derived})
        self._scope = Scope(self._nodes, constants, exact)
        self._faithful: set[str] = set()

    def write(self) -> Written:
        matches = {names[-1]: (pattern, names) for pattern, names in self._region.matches}
        inside = {name for _, names in self._region.matches for name in names[:-1]}
        lines = [
            self._line(node, matches.get(node.name))
            for node in self._nodes.values()
            if node.op == "call_function" and node.name not in inside and not self._scope.is_constant(node)
        ]
        results = [self._nodes[item.name] for item in self._region.outputs]
        self._scope.reads = set()
        returned = ", ".join(self._scope.read(node) for node in results)
        body = self._body(lines, frozenset(self._scope.reads))
        body.append(f"return ({returned}{',' if len(results) == 1 else ''})")
        names = ", ".join(item.name for item in self._scope.prepared)
        text = "\n".join([f"def make({names}):", "    def run(inputs):", *(f"        {line}" for line in body)])
        exact = (item.name for item in self._region.outputs if item.exact_stride)
        return Written(
            text=f"{text}\n\n    return run\n",
            values=self._scope.values,
            prepared=self._scope.prepared,
            derived=self._derived,
            faithful=all(name in self._faithful for name in exact),
        )

    def _line(self, node: torch.fx.Node, match: tuple[str, Sequence[str]] | None) -> _Line:
        self._scope.reads = set()
        if match is not None and self._library.match is not None:
            pattern, names = match
            self._note_layout(node, pattern)
            text = self._library.match(self._scope, pattern, [self._nodes[name] for name in names])
        else:
            text = self._op(node)
        return _Line(node.name, text, frozenset(self._scope.reads))

    def _op(self, node: torch.fx.Node) -> str:
        name = operator_name(node.target)
        self._note_layout(node, name)
        rule = self._library.ops.get(name)
        if rule is not None:
            return rule(self._scope, node)
        scope = self._scope
        if node.target is operator.getitem:
            return f"{scope.text(node.args[0])}[{scope.text(node.args[1])}]"
        arguments = [scope.text(argument) for argument in node.args]
        if name in _METHODS and not node.kwargs:
            return f"{arguments[0]}.{_METHODS[name]}({', '.join(arguments[1:])})"
        arguments += [f"{key}={scope.text(value)}" for key, value in node.kwargs.items()]
        return f"{scope.object(node.target, name)}({', '.join(arguments)})"

    def _note_layout(self, node: torch.fx.Node, name: str) -> None:
        """Remember whether a value has the traced strides for sure; ``name`` is of its op or pattern."""
        meta = value_meta(node.meta.get("val"))
        if name in self._library.dense:
            if isinstance(meta, TensorMeta) and meta.contiguous():
                self._faithful.add(node.name)
        elif name in _LAYOUT_KEEPING and all(source.name in self._faithful for source in _tensors(node)):
            self._faithful.add(node.name)

    def _body(self, lines: Sequence[_Line], needed: frozenset[str]) -> list[str]:
        kept: list[_Line] = []
        wanted = set(needed)
        for line in reversed(lines):
            if line.name in wanted:
                kept.append(line)
                wanted |= line.reads
        body = [
            f"{self._scope.name(self._nodes[name])} = inputs[{place}]"
            for place, name in enumerate(self._given)
            if name in wanted
        ]
        last = {name: line.name for line in reversed(kept) for name in (line.name, *line.reads)}
        for line in reversed(kept):
            body.append(f"{self._scope.name(self._nodes[line.name])} = {line.text}")
            # The caller holds the inputs anyway.
            dying = [name for name, at in last.items() if at == line.name and name not in needed]
            dying = sorted(name for name in dying if name not in self._given)
            body += [f"del {', '.join(self._scope.name(self._nodes[name]) for name in dying)}"] if dying else []
        return body


def _tensors(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [source for source in node.all_input_nodes if not isinstance(source.meta.get("val"), torch.SymInt)]


def _derived(region: Region) -> tuple[torch.fx.Node, ...]:
    """Nodes with values that follow from constants alone, but for those of matches, and for results and what they are
    views of: those are made afresh at every call."""
    known = {item.name for item in region.inputs if item.role is InputRole.CONSTANT}
    kept = {name for _, names in region.matches for name in names}
    alias_of = {view.node.name: view.node.aliased() for view in region.views}
    for item in region.outputs:
        name: str | None = item.name
        while name is not None:
            kept.add(name)
            name = alias_of.get(name)
    found = []
    for node in region.graph_module.graph.nodes:
        sources = node.all_input_nodes if node.op == "call_function" else []
        if sources and node.name not in kept and all(source.name in known for source in sources):
            known.add(node.name)
            found.append(node)
    return tuple(found)
