"""Random functions, called twice in one graph: re-traced with what is equal copied, they are what they are without."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from hypothesis import given
from random_functions import RandomFunction, random_functions
from test_random_graphs import examples

from mixbackend.backends.common import retrace
from mixbackend.graph.trace import trace_region


def _twice(drawn: RandomFunction) -> tuple[Any, list[Any]]:
    once, again = drawn.make_inputs(), drawn.make_inputs()

    def function(*values: Any) -> tuple[Any, ...]:
        results = [drawn.function(*values[: len(once)]), drawn.function(*values[len(once) :])]
        return tuple(item for result in results for item in (result if isinstance(result, tuple) else (result,)))

    return function, [*once, *again]


def _described(traced: retrace.Retraced) -> list[Any]:
    place = {node: index for index, node in enumerate(traced.graph_module.graph.nodes)}
    arguments = [torch.fx.node.map_arg((node.args, node.kwargs), lambda source: f"%{place[source]}") for node in place]
    operations = [(node.op, str(node.target), repr(given)) for node, given in zip(place, arguments, strict=True)]
    return [*operations, *((value.shape, value.stride(), value.dtype) for value in traced.output_values())]


@examples(10, 25)
@given(random_functions())
def test_copies_are_what_would_have_been_traced(drawn: RandomFunction) -> None:
    function, inputs = _twice(drawn)
    region = trace_region(function, inputs)
    copied = retrace.retrace_apart(region, "inductor")
    with mock.patch.object(retrace, "RepeatsCopied", torch.fx.Interpreter):
        assert _described(copied) == _described(retrace.retrace_apart(region, "inductor"))
