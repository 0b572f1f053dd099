"""Loops split where reshapes divide indices: same results, no division left, dimensions equal on both sides."""

from __future__ import annotations

import sympy
import torch
from drawn_graphs import Drawing, add, assert_equal_graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws

from mixbackend.backends.codegen.ir.indices import (
    FloorDiv,
    Modulo,
    flatten,
    floor_div,
    index_symbol,
    modulo,
    unflatten,
    without_digits,
)
from mixbackend.backends.codegen.ir.scalar import IndexValue, apply
from mixbackend.backends.codegen.ir.stages import Stage, StageGraph
from mixbackend.backends.codegen.schedule.split_loops import divisions, split_loops


def sizes_of(graph: StageGraph, name: str) -> list[str]:
    return [str(part) for part in dict(graph.types)[name].sizes]


def loops(stage: Stage, field: str = "loops") -> list[str]:
    return [str(loop.size) for loop in getattr(stage, field)]


def test_statistics_of_a_reshaped_tensor():
    draw = Drawing()
    x = draw.tensor("x", 64, 32, 128)
    mean = draw.fold("mean", (64, 32), (128,), lambda i, j, k: x.at((i, j, k)))

    def value(row, column):
        row_ranges = draw.ranges
        first, second = floor_div(row, 32, row_ranges), modulo(row, 32, row_ranges)
        return add(x.at((first, second, column)), mean.at((first, second)))

    draw.pointwise("y", (2048, 128), value)
    graph = draw.graph("y")
    split = split_loops(graph)
    assert divisions(graph) > 0 and divisions(split) == 0
    assert sizes_of(split, "y") == ["64", "32", "128"]
    assert split.outputs[0].returned.sizes == (2048, 128)
    assert_equal_graphs(graph, split)


def test_a_dimension_read_in_pieces_is_split_where_it_is_made():
    draw = Drawing()
    x = draw.tensor("x", 24, 8)
    total = draw.fold("total", (24,), (8,), lambda i, k: x.at((i, k)))
    draw.pointwise("y", (4, 6, 8), lambda i, j, k: add(x.at((6 * i + j, k)), total.at((6 * i + j,))))
    graph = draw.graph("y")
    split = split_loops(graph)
    assert sizes_of(split, "total") == ["4", "6"]
    assert loops(split.stages[0], "reduced") == ["8"]
    assert_equal_graphs(graph, split)


def test_points_travel_through_chains_and_transposes():
    draw = Drawing()
    x = draw.tensor("x", 5, 12)
    first = draw.pointwise("first", (12, 5), lambda i, j: x.at((j, i)))
    second = draw.pointwise("second", (5, 12), lambda i, j: first.at((j, i)))
    draw.pointwise("third", (5, 3, 4), lambda i, j, k: second.at((i, 4 * j + k)))
    graph = draw.graph("third")
    split = split_loops(graph)
    assert sizes_of(split, "first") == ["3", "4", "5"]
    assert sizes_of(split, "second") == ["5", "3", "4"]
    assert_equal_graphs(graph, split)


def test_reduced_loops_are_split_and_positions_stay():
    draw = Drawing()
    x = draw.tensor("x", 6, 4)
    draw.called("place").reduce(
        "argmax",
        (),
        (24,),
        lambda kept, inner: x.at((floor_div(inner[0], 4, draw.ranges), modulo(inner[0], 4, draw.ranges))),
        [torch.int64],
    )
    graph = draw.graph("place")
    split = split_loops(graph)
    assert loops(split.stages[0], "reduced") == ["6", "4"] and divisions(split) == 0
    assert_equal_graphs(graph, split)


def test_symbolic_factors():
    draw = Drawing()
    batch, length = draw.number("s0"), draw.number("s1")
    x = draw.tensor("x", batch * length, 8)
    total = draw.fold("total", (batch * length,), (8,), lambda i, k: x.at((i, k)))
    draw.pointwise("y", (batch, length, 8), lambda i, j, k: add(total.at((length * i + j,)), x.at((length * i + j, k))))
    graph = draw.graph("y")
    split = split_loops(graph)
    assert sizes_of(split, "total") == ["s0", "s1"]
    assert_equal_graphs(graph, split, {batch: 3, length: 5})


def test_sizes_that_may_not_divide_stay():
    draw = Drawing()
    rows = draw.number("s0")
    x = draw.tensor("x", rows, 4)
    draw.pointwise("y", (rows,), lambda i: x.at((floor_div(i, 4, draw.ranges), modulo(i, 4, draw.ranges))))
    graph = draw.graph("y")
    assert split_loops(graph) is graph


def test_scanned_axes_and_concatenated_axes_stay_whole():
    draw = Drawing()
    x = draw.tensor("x", 3, 8)
    swept = draw.called("swept").scan("sum", (3, 8), 1, lambda index: x.at(index), torch.float32)
    both = draw.called("both").concatenate(
        (3, 16), 1, [(8, lambda index: swept.at(index)), (8, lambda index: x.at(index))], torch.float32
    )
    draw.pointwise("y", (3, 4, 4), lambda i, j, k: both.at((i, 4 * j + k)))
    graph = draw.graph("y")
    split = split_loops(graph)
    assert sizes_of(split, "swept") == ["3", "8"] and sizes_of(split, "both") == ["3", "16"]
    assert_equal_graphs(graph, split)


def test_axis_moves_with_the_loops_before_it():
    draw = Drawing()
    x = draw.tensor("x", 12, 5)
    swept = draw.called("swept").scan("sum", (12, 5), 1, lambda index: x.at(index), torch.float32)
    both = draw.called("both").concatenate(
        (12, 10), 1, [(5, lambda index: swept.at(index)), (5, lambda index: x.at(index))], torch.float32
    )
    draw.pointwise("y", (3, 4, 10), lambda i, j, k: both.at((4 * i + j, k)))
    graph = draw.graph("y", "both")
    split = split_loops(graph)
    assert [stage.axis for stage in split.stages[:2]] == [2, 2]
    assert split.outputs[1].returned.sizes == (12, 10)
    assert_equal_graphs(graph, split)


def test_a_reader_that_would_have_to_divide_keeps_the_dimension_whole():
    draw = Drawing()
    x = draw.tensor("x", 12)
    made = draw.pointwise("made", (12,), lambda i: x.at((i,)))
    draw.pointwise("pieces", (3, 4), lambda i, j: made.at((4 * i + j,)))
    draw.pointwise("shifted", (11,), lambda i: made.at((i + 1,)))
    graph = draw.graph("pieces", "shifted")
    split = split_loops(graph)
    assert sizes_of(split, "made") == ["12"] and divisions(split) == 0
    assert_equal_graphs(graph, split)


def test_scatter_splits_a_dimension_it_writes_row_by_row():
    draw = Drawing()
    x, rows = draw.tensor("x", 12, 5), draw.tensor("rows", 12, 5, dtype=torch.int64)
    symbol = draw.bound_symbol(7)

    def destination(index):
        return (index[0], symbol), ((symbol, rows.at(index)),)

    made = draw.called("made").scatter(
        (12, 7), torch.float32, lambda index: add(x.at((index[0], 0))), (12, 5), destination, x.at, mode="add"
    )
    draw.pointwise("y", (3, 4, 7), lambda i, j, k: made.at((4 * i + j, k)))
    graph = draw.graph("y")
    split = split_loops(graph)
    assert sizes_of(split, "made") == ["3", "4", "7"]
    assert [str(part) for part in loops(split.stages[0], "target_loops")] == ["3", "4", "7"]
    assert len(split.stages[0].destination) == 3
    assert_equal_graphs(graph, split)


def test_scatter_keeps_a_dimension_written_anywhere():
    draw = Drawing()
    x, rows = draw.tensor("x", 6), draw.tensor("rows", 6, dtype=torch.int64)
    symbol = draw.bound_symbol(12)
    made = draw.called("made").scatter(
        (12,),
        torch.float32,
        lambda index: apply("to_dtype", IndexValue(torch.int64, index[0]), dtype=torch.float32),
        (6,),
        lambda index: ((symbol,), ((symbol, rows.at(index)),)),
        x.at,
        mode="add",
    )
    draw.pointwise("y", (3, 4), lambda i, j: made.at((4 * i + j,)))
    graph = draw.graph("y")
    split = split_loops(graph)
    assert sizes_of(split, "made") == ["12"]
    assert_equal_graphs(graph, split)


def test_nested_points_and_points_that_do_not_nest():
    draw = Drawing()
    x = draw.tensor("x", 24)
    made = draw.pointwise("made", (24,), lambda i: x.at((i,)))
    draw.pointwise("by_four", (6, 4), lambda i, j: made.at((4 * i + j,)))
    draw.pointwise("by_twelve", (2, 12), lambda i, j: made.at((12 * i + j,)))
    nested = draw.graph("by_four", "by_twelve")
    split = split_loops(nested)
    assert sizes_of(split, "made") == ["2", "3", "4"] == sizes_of(split, "by_twelve")
    assert_equal_graphs(nested, split)
    draw.pointwise("by_eight", (3, 8), lambda i, j: made.at((8 * i + j,)))
    clash = draw.graph("by_eight")
    assert sizes_of(split_loops(clash), "made") == ["24"]
    assert divisions(split_loops(clash)) == 0
    assert_equal_graphs(clash, split_loops(clash))


def test_loops_that_would_be_divided_more_often_stay_whole_and_others_do_not():
    draw = Drawing()
    x, y = draw.tensor("x", 24), draw.tensor("y", 6, 8)
    made = draw.pointwise("made", (24,), lambda i: x.at((i,)))
    draw.pointwise("pieces", (6, 4), lambda i, j: made.at((4 * i + j,)))
    names = [f"turned{number}" for number in range(6)]
    for number, name in enumerate(names):
        draw.pointwise(name, (24,), lambda i, n=number: made.at((modulo(i + n + 1, 24, draw.ranges),)))
    draw.pointwise("flat", (48,), lambda i: y.at((floor_div(i, 8, draw.ranges), modulo(i, 8, draw.ranges))))
    graph = draw.graph("pieces", *names, "flat")
    split = split_loops(graph)
    assert sizes_of(split, "made") == ["24"] and sizes_of(split, "flat") == ["6", "8"]
    assert divisions(split) == 6, "as many as there are turned reads"
    assert_equal_graphs(graph, split)


SHAPES = st.sampled_from([(24,), (2, 12), (4, 6), (6, 4), (2, 3, 4), (3, 8), (12, 2), (1, 24), (4, 3, 2)])


@settings(max_examples=draws(21, 60), deadline=None)
@given(st.lists(st.tuples(SHAPES, st.integers(0, 5), st.booleans()), min_size=2, max_size=6))
def test_random_chains_of_reshapes(steps):
    draw = Drawing()
    tensors = [draw.tensor("x", *steps[0][0])]
    for number, (shape, choice, transposed) in enumerate(steps):
        source = tensors[choice % len(tensors)]

        def value(*index, source=source, shape=shape):
            ranges = draw.ranges
            return source.at(unflatten(flatten(index, map(sympy.Integer, shape)), source.sizes, ranges))

        def turned(*index, value=value):
            return value(*reversed(index))

        sizes = tuple(reversed(shape)) if transposed else shape
        tensors.append(draw.pointwise(f"t{number}", sizes, turned if transposed else value))
    graph = draw.graph(*(f"t{number}" for number in range(len(steps))))
    split = split_loops(graph)
    assert divisions(split) <= divisions(graph)
    assert_equal_graphs(graph, split)


def test_reversed_reads_of_symbolic_sizes_ask_for_nothing():
    draw = Drawing()
    rows, columns = draw.number("s0"), draw.number("s1")
    x = draw.tensor("x", rows * columns)
    draw.pointwise("y", (rows * columns,), lambda i: x.at((rows * columns - 1 - i,)))
    draw.pointwise("z", (rows,), lambda i: x.at((floor_div(rows * columns - 1 - columns * i, columns, draw.ranges),)))
    graph = draw.graph("y", "z")
    split = split_loops(graph)
    assert sizes_of(split, "y") == ["s0*s1"]
    assert_equal_graphs(graph, split, {rows: 3, columns: 4})


def test_digits_that_lie_one_behind_the_other_are_no_divisions() -> None:
    i, j, p = index_symbol("i"), index_symbol("j"), sympy.Symbol("p", integer=True, positive=True)
    pair = 8 * FloorDiv(i, 8) + Modulo(i, 8)
    three = 384 * FloorDiv(i, 384) + 192 * Modulo(FloorDiv(i, 192), 2) + Modulo(i, 192)
    assert without_digits(pair) == i and without_digits(three) == i
    assert without_digits(sympy.expand(p * three + 5 * j + 3)) == p * i + 5 * j + 3
    digit = Modulo(i, 8)
    for kept in (9 * FloorDiv(i, 8) + digit, 8 * FloorDiv(j, 8) + digit, digit, FloorDiv(i, 8) * j):
        assert without_digits(kept) == kept
