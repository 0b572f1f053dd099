"""Inlining: what is cheap is computed where it is read, what is not keeps its reason; values never change."""

from __future__ import annotations

import sympy
import torch
from drawn_graphs import Drawing, add, assert_equal_graphs, exp, size

from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.scalar import Constant, IndexValue, Load, apply
from mixbackend.backends.codegen.ir.stages import Map, Reduce, targets_of
from mixbackend.backends.codegen.schedule.simplify import simplify


def names(graph) -> list[str]:
    return [name for stage in graph.stages for name in targets_of(stage)]


def test_a_chain_becomes_one_stage() -> None:
    drawing = Drawing()
    x = drawing.tensor("x", 4, 8)
    one = drawing.pointwise("one", (4, 8), lambda i, j: exp(x.at((i, j))))
    two = drawing.pointwise("two", (4, 8), lambda i, j: exp(one.at((i, j))))
    drawing.pointwise("three", (8, 4), lambda i, j: add(two.at((j, i)), two.at((j, i))))
    graph = drawing.graph("three")
    smaller, refusals = simplify(graph, {})
    assert names(smaller) == ["three"] and refusals == ()
    assert_equal_graphs(graph, smaller)


def test_expensive_values_with_several_readers_stay() -> None:
    drawing = Drawing()
    x = drawing.tensor("x", 64, 64)
    high = drawing.pointwise("high", (64, 64), lambda i, j: exp(x.at((i, j))))
    total = drawing.fold("total", (64,), (64,), lambda i, j: high.at((i, j)))
    drawing.pointwise("share", (64, 64), lambda i, j: apply("div", high.at((i, j)), total.at((i,))))
    graph = drawing.graph("share")
    smaller, refusals = simplify(graph, {})
    assert names(smaller) == ["high", "total", "share"]
    assert [refusal.first for refusal in refusals] == ["high"] and "2 readers" in refusals[0].reason
    assert_equal_graphs(graph, smaller)


def test_an_expensive_row_value_is_not_computed_for_every_column() -> None:
    drawing = Drawing()
    x = drawing.tensor("x", 16)
    y = drawing.tensor("y", 16, 128)
    row = drawing.pointwise("row", (16,), lambda i: exp(x.at((i,))))
    drawing.pointwise("all", (16, 128), lambda i, j: add(row.at((i,)), y.at((i, j))))
    smaller, refusals = simplify(drawing.graph("all"), {})
    assert names(smaller) == ["row", "all"]
    assert "128 times" in refusals[0].reason


def test_what_is_the_same_everywhere_is_no_reason_to_store() -> None:
    """A quotient of two numbers is computed once, however many points and readers there are."""
    drawing = Drawing()
    x, one, other = drawing.tensor("x", 16), drawing.tensor("one"), drawing.tensor("other")
    scaled = drawing.pointwise(
        "scaled", (16, 64), lambda i, j: apply("mul", x.at((i,)), apply("div", exp(one.at(())), other.at(())))
    )
    total = drawing.fold("total", (16,), (64,), lambda i, j: scaled.at((i, j)))
    drawing.pointwise("out", (16, 64), lambda i, j: add(scaled.at((i, j)), total.at((i,))))
    graph = drawing.graph("out")
    smaller, refusals = simplify(graph, {})
    assert names(smaller) == ["total", "out"] and refusals == ()


def test_outputs_are_written_by_their_stage_and_dead_stages_go() -> None:
    drawing = Drawing()
    x = drawing.tensor("x", 4, 4)
    value = drawing.pointwise("value", (4, 4), lambda i, j: exp(x.at((i, j))))
    drawing.pointwise("dead", (4, 4), lambda i, j: exp(value.at((i, j))))
    drawing.pointwise("out", (4, 4), lambda i, j: value.at((i, j)))
    drawing.pointwise("again", (4, 4), lambda i, j: value.at((i, j)))
    graph = drawing.graph("out", "again")
    smaller, _ = simplify(graph, {})
    assert names(smaller) == ["out", "again"]
    assert isinstance(smaller.stages[1], Map) and smaller.stages[1].value == Load(
        torch.float32, "out", tuple(loop.index for loop in smaller.stages[1].loops)
    )
    assert_equal_graphs(graph, smaller)


def test_unused_results_of_a_reduction_are_dropped() -> None:
    drawing = Drawing()
    x = drawing.tensor("x", 4, 8)
    both = drawing.called("moments").reduce(
        "welford", (4,), (8,), lambda i, j: x.at((*i, *j)), [torch.float32, torch.float32]
    )
    drawing.pointwise("out", (4,), lambda i: exp(both[0].at((i,))))
    smaller, _ = simplify(drawing.graph("out"), {})
    (reduce,) = (stage for stage in smaller.stages if isinstance(stage, Reduce))
    assert reduce.targets == ("moments", None)


def test_masks_reach_every_access_of_what_is_inlined() -> None:
    drawing = Drawing()
    x, y = drawing.tensor("x", 4), drawing.tensor("y", 4)
    inner = drawing.pointwise("inner", (4,), lambda i: add(exp(x.at((i,))), y.at((i,))))

    def padded(i: sympy.Symbol):
        inside = apply("lt", IndexValue(torch.int64, i), Constant(torch.int64, 4))
        assert inner.sizes == (4,)
        return Load(torch.float32, "inner", (i,), mask=inside, other=7)

    drawing.pointwise("out", (6,), padded)
    graph = drawing.graph("out")
    smaller, _ = simplify(graph, {})
    assert names(smaller) == ["out"]
    assert_equal_graphs(graph, smaller)


def test_two_copies_of_a_gather_keep_their_indices_apart() -> None:
    drawing = Drawing()
    drawing.tensor("table", 5)
    rows = drawing.tensor("rows", 6, dtype=torch.int64)
    symbol = index_symbol("v0")

    def gathered(i: sympy.Symbol):
        row = apply("minimum", rows.at((i,)), Constant(torch.int64, 4))
        return Load(torch.float32, "table", (symbol,), ((symbol, row),))

    drawing.pointwise("picked", (6,), gathered)
    picked = drawing.lazy((6,), torch.float32, lambda index: Load(torch.float32, "picked", index))
    drawing.pointwise("out", (3,), lambda i: add(picked.at((i,)), picked.at((i + 3,))))
    graph = drawing.graph("out")
    smaller, _ = simplify(graph, {})
    assert names(smaller) == ["out"]
    assert_equal_graphs(graph, smaller)


def test_an_index_value_read_at_a_run_time_place_becomes_arithmetic() -> None:
    drawing = Drawing()
    rows = drawing.tensor("rows", 6, dtype=torch.int64)
    drawing.called("numbers").map((8,), torch.float32, lambda index: IndexValue(torch.float32, 2 * index[0] + 1))
    symbol = index_symbol("v0")
    drawing.pointwise("out", (6,), lambda i: Load(torch.float32, "numbers", (symbol,), ((symbol, rows.at((i,))),)))
    graph = drawing.graph("out")
    smaller, _ = simplify(graph, {})
    assert names(smaller) == ["out"]
    assert_equal_graphs(graph, smaller)


def test_symbolic_sizes_are_weighed_by_their_hints() -> None:
    rows = size("s0")
    drawing = Drawing()
    x, y = drawing.tensor("x", rows), drawing.tensor("y", rows, 4)
    row = drawing.pointwise("row", (rows,), lambda i: exp(x.at((i,))))
    drawing.pointwise("all", (rows, 4), lambda i, j: add(row.at((i,)), y.at((i, j))))
    graph = drawing.graph("all")
    smaller, _ = simplify(graph, {rows: 1000})
    assert names(smaller) == ["row", "all"]
    assert_equal_graphs(graph, smaller, {rows: 3})
