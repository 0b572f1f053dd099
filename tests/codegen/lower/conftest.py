"""One harness for lowering: trace, judge, lower, interpret, compare with eager and float64."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.check import check_stages
from mixbackend.backends.codegen.ir.stages import StageGraph
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.contracts import ErrorBudget, Region, Supported, Unsupported
from mixbackend.contracts.numerics import find_deviation
from mixbackend.execute.verify import eager_result, reference_result
from mixbackend.graph.trace import trace_region

BUDGET = ErrorBudget()


def refusals(region: Region) -> list[Unsupported]:
    """Verdicts against ops of a region."""
    verdicts = [judge_op(view) for view in region.views]
    return [verdict for verdict in verdicts if isinstance(verdict, Unsupported)]


def check_lowering(function: Callable[..., Any], inputs: Sequence[Any], *, dynamic: bool = False) -> StageGraph:
    """Every op of the function is claimed, and its stages compute what eager does.

    Args:
        function: plain torch code that returns a tensor or a tuple of tensors.
        inputs: its arguments.
        dynamic: whether sizes over 1 are symbols.

    Returns:
        The stages, for a closer look.
    """
    region = trace_region(function, inputs, dynamic=dynamic)
    for view in region.views:
        assert judge_op(view) == Supported(), f"{view.node}: {judge_op(view)}"
    graph = lower_region(region)
    check_stages(graph)
    actual = arguments_of(region, inputs)
    results = interpret_stages(graph, actual)
    expected = eager_result(region, actual)
    reference = reference_result(region, actual, expected)
    assert len(results) == len(expected) == len(region.outputs)
    for index, (result, eager, exact) in enumerate(zip(results, expected, reference, strict=True)):
        deviation = find_deviation(index, result, eager, exact, BUDGET)
        assert deviation is None, f"{deviation}\n{result}\n{eager}"
    return graph


def arguments_of(region: Region, inputs: Sequence[Any]) -> list[Any]:
    """What a region is called with, given the arguments of the function it was traced from."""
    values = []
    for item in region.inputs:
        place = re.fullmatch(r"arg(\d+)_\d+", item.name)
        values.append(item.meta.hint if place is None else inputs[int(place[1])])
    return values


@pytest.fixture(name="check_lowering", scope="session")
def _check_lowering() -> Callable[..., StageGraph]:
    return check_lowering


@pytest.fixture(name="refused", scope="session")
def _refused() -> Callable[..., list[str]]:
    """Codes of the refusals of a function's ops."""

    def codes(
        function: Callable[..., Any], inputs: Sequence[Any], *, dynamic: bool = False, **options: Any
    ) -> list[str]:
        return [verdict.code for verdict in refusals(trace_region(function, inputs, dynamic=dynamic, **options))]

    return codes
