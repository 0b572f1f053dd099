"""Long reductions with few results become pieces that can run in parallel; the results are the same."""

from __future__ import annotations

import pytest
import torch
from drawn_graphs import Drawing, assert_equal_graphs, random_inputs, size

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.stages import Reduce
from mixbackend.backends.codegen.schedule.layout import choose_layouts
from mixbackend.backends.codegen.schedule.split import split_reductions
from mixbackend.backends.codegen.targets.target import Blocks


def split(graph, width: int, hints: dict):
    return split_reductions(graph, choose_layouts(graph, hints), width, hints)


def reductions(graph) -> list[Reduce]:
    return [stage for stage in graph.stages if isinstance(stage, Reduce)]


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_a_full_reduction_is_cut(kind: str) -> None:
    drawing = Drawing()
    x = drawing.tensor("x", 256, 256)
    drawing.fold("total", (), (256, 256), lambda i, j: x.at((i, j)), kind)
    graph = drawing.graph("total")
    pieces = split(graph, 2, {})
    first, last = reductions(pieces)
    assert [loop.size for loop in first.reduced] == [64, 256] and [loop.size for loop in last.reduced] == [4]
    assert_equal_graphs(graph, pieces)


def test_column_sums_are_cut_by_rows() -> None:
    drawing = Drawing()
    x = drawing.tensor("x", 4096, 96)
    drawing.fold("columns", (96,), (4096,), lambda j, i: x.at((i, j)))
    graph = drawing.graph("columns")
    pieces = split(graph, 2, {})
    assert len(reductions(pieces)) == 2
    assert_equal_graphs(graph, pieces)


def test_row_sums_of_many_rows_stay_whole() -> None:
    drawing = Drawing()
    x = drawing.tensor("x", 512, 768)
    drawing.fold("rows", (512,), (768,), lambda i, j: x.at((i, j)))
    graph = drawing.graph("rows")
    assert split(graph, 8, {}) == graph


def test_a_symbolic_batch_becomes_the_pieces() -> None:
    batch = size("s0")
    drawing = Drawing()
    x = drawing.tensor("x", batch, 3, 32, 32)
    drawing.fold("total", (3,), (batch, 32, 32), lambda c, n, h, w: x.at((n, c, h, w)))
    graph = drawing.graph("total")
    pieces = split(graph, 16, {batch: 16})
    first, last = reductions(pieces)
    assert first.loops[0].size == batch and last.reduced[0].size == batch
    for count in (1, 5):
        assert_equal_graphs(graph, pieces, {batch: count})


@pytest.mark.parametrize("squares", [True, False])
def test_moments_of_pieces_are_combined(squares: bool) -> None:
    drawing = Drawing()
    x = drawing.tensor("x", 128, 256)
    results = drawing.called("moments").reduce(
        "welford", (), (128, 256), lambda kept, inner: x.at(inner), [torch.float32, torch.float32]
    )
    assert len(results) == 2
    graph = drawing.graph(*(["moments", "moments.r1"] if squares else ["moments"]))
    pieces = split(graph, 4, {})
    assert len(pieces.stages) > 1
    inputs = random_inputs(graph)
    for one, other in zip(interpret_stages(graph, inputs), interpret_stages(pieces, inputs), strict=True):
        torch.testing.assert_close(one, other)


def test_positions_are_not_cut() -> None:
    drawing = Drawing()
    x = drawing.tensor("x", 256, 256)
    drawing.called("place").reduce("argmax", (), (256, 256), lambda kept, inner: x.at(inner), [torch.int64])
    graph = drawing.graph("place")
    assert split(graph, 8, {}) == graph


def test_a_prime_number_of_rows_stays_whole() -> None:
    drawing = Drawing()
    x = drawing.tensor("x", 65537)
    drawing.fold("total", (), (65537,), lambda i: x.at((i,)))
    graph = drawing.graph("total")
    assert split(graph, 8, {}) == graph


def test_blocks_have_pieces_of_two_loops_where_one_is_too_short() -> None:
    """An image's channels are columns: of 8 x 24 x 24 points, a whole batch and a part of the rows are pieces."""
    drawing = Drawing()
    x = drawing.tensor("x", 8, 24, 24, 32)
    results = drawing.called("moments").reduce(
        "welford",
        (32,),
        (8, 24, 24),
        lambda kept, inner: x.at((*inner, *kept)),
        [torch.float32, torch.float32],
    )
    assert len(results) == 2
    graph = drawing.graph("moments", "moments.r1")
    blocks = Blocks(resident=16384, least_columns=16, piece=8192, columns=64, meeting=frozenset({"set", "add"}))
    pieces = split_reductions(graph, choose_layouts(graph, {}), 32, {}, blocks)
    first, *_ = reductions(pieces)
    assert [loop.size for loop in first.loops] == [8, 8, 32] and [loop.size for loop in first.reduced] == [3, 24]
    inputs = random_inputs(graph)
    for one, other in zip(interpret_stages(graph, inputs), interpret_stages(pieces, inputs), strict=True):
        torch.testing.assert_close(one, other)
