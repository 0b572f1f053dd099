"""Repeats: a graph is traced with each kind of work in it once; what is equal to it is copied.

Place: below ``retrace``. Layers of a model repeat, and to decompose an op takes ten times as long as to copy what
another one became.
Input: a graph of ops that are run on fake tensors inside ``make_fx``. Output: what its outputs are; the trace is as if
every op had been run.
Invariants: ops are equal if operator, numbers, and the dtypes, devices, sizes, strides and offsets of all tensors are,
and if these are the same tensor at the same places. Every value is a tensor of its own, a view where the first of its
kind was one. Ops with symbolic sizes, real tensors or constants are always run.
Non-goals: mutation, random ops; see ``retrace``.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat import Trace, is_fake, is_operator, storage_key

Form = tuple[torch.dtype, torch.device, tuple[int, ...], tuple[int, ...], int]
"""What is equal of equal tensors: dtype, device, sizes, strides, offset."""


class _UnlikeError(Exception):
    """An op that is no repeat of anything, and that nothing repeats."""


@dataclass(frozen=True)
class _Result:
    """One value that an op gave.

    Attributes:
        node: what it came from.
        form: of the tensor.
        shown: which of the op's tensors it is a view of, ``None`` for fresh memory.
    """

    node: torch.fx.Node
    form: Form
    shown: int | None


@dataclass(frozen=True)
class _Traced:
    """What an op became.

    Attributes:
        inputs: the nodes its tensors came from, by position.
        nodes: what it added to the graph.
        results: per result; a number where it handed one of its tensors on, ``None`` where there is nothing.
        container: of the results; ``None`` if there is one without any.
    """

    inputs: tuple[torch.fx.Node, ...]
    nodes: tuple[torch.fx.Node, ...]
    results: tuple[_Result | int | None, ...]
    container: type | None


class RepeatsCopied(torch.fx.Interpreter):
    """Runs a graph inside ``make_fx``; see the module's docstring."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self._trace = Trace()
        self._known: dict[Hashable, _Traced | None] = {}

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op, or copy what an equal one became."""
        if not is_operator(target):
            return super().call_function(target, args, kwargs)
        tensors: list[torch.Tensor] = []
        try:
            kind = target, _kind(args, tensors), _kind(kwargs, tensors)
            inputs = tuple(map(self._node, tensors))
        except _UnlikeError:
            return super().call_function(target, args, kwargs)
        traced = self._known.get(kind)
        if traced is not None:
            return self._copy(traced, inputs, tensors)
        if kind in self._known:
            return super().call_function(target, args, kwargs)
        last = next(iter(reversed(self._trace.graph.nodes)), None)
        results = super().call_function(target, args, kwargs)
        try:
            self._known[kind] = self._record(last, inputs, tensors, results)
        except _UnlikeError:
            self._known[kind] = None
        return results

    def _record(
        self,
        last: torch.fx.Node | None,
        inputs: tuple[torch.fx.Node, ...],
        tensors: Sequence[torch.Tensor],
        results: Any,
    ) -> _Traced:
        nodes = list(itertools.takewhile(lambda node: node is not last, reversed(self._trace.graph.nodes)))[::-1]
        # What came from one node for two tensors would be one input of all repeats.
        strangers = {source for node in nodes for source in node.all_input_nodes} - {*nodes, *inputs}
        if strangers or len(set(inputs)) < len(inputs):
            raise _UnlikeError
        container = None if isinstance(results, torch.Tensor) else type(results)
        if container not in (None, tuple, list):
            raise _UnlikeError
        values = (results,) if container is None else results
        recorded = tuple(self._result(value, tensors, frozenset(nodes)) for value in values)
        fresh = [storage_key(v) for v, r in zip(values, recorded, strict=True) if _is_fresh(r)]
        if len(set(fresh)) < len(fresh):
            raise _UnlikeError
        return _Traced(inputs, tuple(nodes), recorded, container)

    def _result(
        self, value: Any, tensors: Sequence[torch.Tensor], nodes: frozenset[torch.fx.Node]
    ) -> _Result | int | None:
        if value is None:
            return None
        handed_on = [place for place, tensor in enumerate(tensors) if tensor is value]
        if handed_on:
            return handed_on[0]
        if not isinstance(value, torch.Tensor):
            raise _UnlikeError
        node, key = self._node(value), storage_key(value)
        if node not in nodes:
            raise _UnlikeError
        shown = next((place for place, tensor in enumerate(tensors) if storage_key(tensor) == key), None)
        # Views of another type, and parts of memory that is fresh, are rare enough to be made anew.
        if value.storage_offset() != 0 if shown is None else tensors[shown].dtype != value.dtype:
            raise _UnlikeError
        return _Result(node, _form(value), shown)

    def _node(self, value: torch.Tensor) -> torch.fx.Node:
        node = self._trace.node_of(value)
        if node is None:
            raise _UnlikeError
        return node

    def _copy(self, traced: _Traced, inputs: Sequence[torch.fx.Node], tensors: Sequence[torch.Tensor]) -> Any:
        new = dict(zip(traced.inputs, inputs, strict=True))
        for node in traced.nodes:
            new[node] = self._trace.copied(node, new.__getitem__)
        results = self._results(traced, tensors, new)
        return next(results) if traced.container is None else traced.container(results)

    def _results(
        self, traced: _Traced, tensors: Sequence[torch.Tensor], new: Mapping[torch.fx.Node, torch.fx.Node]
    ) -> Iterator[torch.Tensor | None]:
        for result in traced.results:
            if isinstance(result, _Result):
                shown = None if result.shown is None else tensors[result.shown]
                yield self._trace.stands_for(new[result.node], partial(_made, result.form, shown))
            else:
                yield None if result is None else tensors[result]


def _is_fresh(result: _Result | int | None) -> bool:
    return isinstance(result, _Result) and result.shown is None


def _kind(value: Any, tensors: list[torch.Tensor]) -> Hashable:
    """What is equal of equal arguments; their tensors are added to ``tensors``, each once.

    Raises:
        _UnlikeError: they depend on symbols or on values.
    """
    if isinstance(value, torch.Tensor):
        return _place(value, tensors), _form(value)
    if isinstance(value, (tuple, list)):
        return tuple(_kind(item, tensors) for item in value)
    if isinstance(value, Mapping):
        return tuple((name, _kind(item, tensors)) for name, item in value.items())
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise _UnlikeError
    # One, 1.0 and true are equal, and so are the two zeros.
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


def _place(value: torch.Tensor, tensors: list[torch.Tensor]) -> int:
    for place, tensor in enumerate(tensors):
        if tensor is value:
            return place
    tensors.append(value)
    return len(tensors) - 1


def _form(value: torch.Tensor) -> Form:
    if not is_fake(value) or value.layout is not torch.strided:
        raise _UnlikeError
    sizes, strides, offset = tuple(value.shape), value.stride(), value.storage_offset()
    if not isinstance(offset, int) or not all(isinstance(number, int) for number in (*sizes, *strides)):
        raise _UnlikeError
    return value.dtype, value.device, sizes, strides, offset


def _made(form: Form, shown: torch.Tensor | None) -> torch.Tensor:
    dtype, device, sizes, strides, offset = form
    if shown is None:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    return shown.as_strided(sizes, strides, offset)
