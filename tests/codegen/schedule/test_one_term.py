"""Sums with one term that is not zero are computed without a loop; all others stay as they are."""

from __future__ import annotations

import pytest
import sympy
import torch
from drawn_graphs import Drawing, assert_equal_graphs, size

from mixbackend.backends.codegen.ir.scalar import Constant, IndexValue, apply
from mixbackend.backends.codegen.ir.stages import Map, Reduce
from mixbackend.backends.codegen.schedule.simplify import simplify

ZERO = Constant(torch.float32, 0.0)


def is_at(label, j):
    return apply("eq", label, IndexValue(torch.int64, sympy.sympify(j)))


def drawn(term, classes=8, otherwise=ZERO, kind="sum"):
    """A sum over classes of what ``term`` makes of a label, a value and a weight per class."""
    drawing = Drawing()
    classes = drawing.number(classes) if isinstance(classes, str) else classes
    labels = drawing.tensor("labels", 6, dtype=torch.int64)
    values = drawing.tensor("values", 6)
    weights = drawing.tensor("weights", classes)

    def value(i, j):
        condition, result = term(labels.at((i,)), values.at((i,)), weights.at((j,)), j)
        return apply("where", condition, result, otherwise)

    drawing.fold("total", (6,), (classes,), value, kind)
    return drawing.graph("total")


def counted(label, value, weight, j):
    return apply("and", is_at(label, j), apply("ne", label, Constant(torch.int64, 3))), value


@pytest.mark.parametrize("classes", [8, 2, "n"])
def test_the_label_decides(classes) -> None:
    graph = drawn(counted, classes)
    smaller, _ = simplify(graph, {})
    (stage,) = smaller.stages
    assert isinstance(stage, Map)
    # Labels are drawn from 0 to 3: those that are no class add nothing.
    assert_equal_graphs(graph, smaller, {size("n"): 2})


def test_either_side_of_the_comparison() -> None:
    graph = drawn(lambda label, value, weight, j: (apply("eq", *reversed(is_at(label, j).arguments)), value))
    smaller, _ = simplify(graph, {})
    assert isinstance(smaller.stages[0], Map)
    assert_equal_graphs(graph, smaller)


OTHERS = {
    "a value per class": drawn(lambda label, value, weight, j: (is_at(label, j), weight)),
    "a condition per class": drawn(
        lambda label, value, weight, j: (apply("and", is_at(label, j), apply("gt", weight, ZERO)), value)
    ),
    "several terms": drawn(
        lambda label, value, weight, j: (apply("lt", label, IndexValue(torch.int64, sympy.sympify(j))), value)
    ),
    "something else elsewhere": drawn(counted, otherwise=Constant(torch.float32, 1.0)),
    "the largest": drawn(counted, kind="max"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_folded(name) -> None:
    smaller, _ = simplify(OTHERS[name], {})
    assert isinstance(smaller.stages[-1], Reduce)
    assert_equal_graphs(OTHERS[name], smaller)
