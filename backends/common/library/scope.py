"""Scope: what a rule may ask while it writes the text of one value.

Place: between ``rules`` and ``writer``. Input: nodes and Python objects. Output: names for generated text.
Two kinds of functions are written from one region. In the live one every region input is an argument of each call. In
the bound one constants are known before: ``prepare`` derives something from them once (packed weights, transposes),
and the function only mentions the result.
Invariants: a name means one thing; what a rule reads is recorded, so that dead values are left out and freed.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import TensorMeta
from mixbackend.contracts.describe_op import value_meta

Derive = Callable[[torch.Tensor], Any]


@dataclass(frozen=True)
class Prepared:
    """Something that is made of one constant value when a region is bound.

    Attributes:
        name: under which the text mentions it.
        source: name of the node with the value that it is made of.
        derive: makes it; must not write into the value.
    """

    name: str
    source: str
    derive: Derive


class Scope:
    """Names for one generated function.

    Args:
        nodes: of the region's graph; their names are taken.
        constants: names of nodes with values that are known when the region is bound; none for the live function.
        exact: names of region outputs that must have the traced strides.
    """

    def __init__(self, nodes: Mapping[str, torch.fx.Node], constants: frozenset[str], exact: frozenset[str]) -> None:
        self._taken = {*nodes, *keyword.kwlist, "inputs", "run", "make"}
        self._names = {name: name if name.isidentifier() and not keyword.iskeyword(name) else "" for name in nodes}
        self._constants = constants
        self._exact = exact
        self._objects: dict[int, str] = {}
        self._prepared: dict[tuple[str, Any], Prepared] = {}
        self.values: dict[str, Any] = {}
        self.reads: set[str] = set()

    @property
    def prepared(self) -> tuple[Prepared, ...]:
        """What binding has to make, in the order in which it was asked for."""
        return tuple(self._prepared.values())

    def name(self, node: torch.fx.Node) -> str:
        """The variable of a node's value."""
        if not self._names[node.name]:
            self._names[node.name] = self._fresh("value")
        return self._names[node.name]

    def meta(self, node: torch.fx.Node) -> TensorMeta:
        """What was traced of a node that is one tensor."""
        meta = value_meta(node.meta["val"])
        assert isinstance(meta, TensorMeta), node.name
        return meta

    def is_constant(self, node: torch.fx.Node) -> bool:
        """Whether its value is known when this function is bound."""
        return node.name in self._constants

    def keeps_layout(self, node: torch.fx.Node) -> bool:
        """Whether code outside depends on the strides of a node's value."""
        return node.name in self._exact

    def read(self, node: torch.fx.Node) -> str:
        """Text of a node's value."""
        if self.is_constant(node):
            return self.prepare(node, _itself)
        self.reads.add(node.name)
        return self.name(node)

    def prepare(self, node: torch.fx.Node, derive: Derive, key: Any = None) -> str:
        """Text of what ``derive`` makes of a constant node's value; equal keys (or functions) share one result."""
        known = self._prepared.get((node.name, key or derive))
        if known is None:
            known = Prepared(self._fresh(f"constant_{node.name}"), node.name, derive)
            self._prepared[node.name, key or derive] = known
        return known.name

    def object(self, value: Any, hint: str = "") -> str:
        """Text of any Python object: functions, dtypes, numbers that have no exact text."""
        if id(value) not in self._objects:
            name = self._fresh(hint or getattr(value, "__name__", "") or type(value).__name__)
            self._objects[id(value)] = name
            self.values[name] = value
        return self._objects[id(value)]

    def text(self, argument: Any) -> str:
        """Text of an fx argument."""
        if isinstance(argument, torch.fx.Node):
            return self.read(argument)
        if isinstance(argument, (list, tuple)):
            return f"[{', '.join(self.text(item) for item in argument)}]"
        if argument is None or isinstance(argument, (bool, int, str)):
            return repr(argument)
        # Infinities have no literal, and dtypes none that is short.
        return self.object(argument, "number" if isinstance(argument, (float, complex)) else "")

    def _fresh(self, hint: str) -> str:
        stem = "".join(letter if letter.isalnum() else "_" for letter in hint).strip("_") or "object"
        name, count = f"{stem}_", 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}_"
        self._taken.add(name)
        return name


def _itself(value: torch.Tensor) -> torch.Tensor:
    return value
