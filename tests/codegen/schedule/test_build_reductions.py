"""Reductions share passes, keep their results near, and run along contiguous memory."""

from __future__ import annotations

import pytest
import torch
from built_kernels import build, modes, shape
from drawn_graphs import Drawing, add, exp, size

from mixbackend.backends.codegen.ir.kernel import Accumulate, Store
from mixbackend.backends.codegen.ir.scalar import Constant, IndexValue, Load, apply


def softmax(rows, columns, axis):
    """A softmax in stages; ``axis`` is the reduced dimension."""
    draw = Drawing()
    sizes = (rows, columns)
    x = draw.tensor("x", *sizes)
    kept, folded = sizes[1 - axis], sizes[axis]

    def place(k, r):
        return (k, r) if axis == 1 else (r, k)

    largest = draw.fold("largest", (kept,), (folded,), lambda k, r: x.at(place(k, r)), "max")

    def powers_at(i, j):
        return exp(apply("sub", x.at((i, j)), largest.at(((i, j)[1 - axis],))))

    powers = draw.pointwise("powers", sizes, powers_at)
    total = draw.fold("total", (kept,), (folded,), lambda k, r: powers.at(place(k, r)))
    draw.pointwise("y", sizes, lambda i, j: apply("div", powers.at((i, j)), total.at(((i, j)[1 - axis],))))
    return draw.graph("y"), [(0,), (1 - axis,), (0,), (1 - axis,)]


def test_softmax_of_rows_makes_three_passes_with_the_powers_in_scratch():
    kernel = build(*softmax(8, 3000, axis=1))
    assert modes(kernel.outer) == ["parallel 8"]
    assert [shape(nest) for nest in kernel.nests] == [
        ([], ["vector 3000"]),
        ([], ["vector 3000"]),
        (["vector 3000"], []),
    ]
    assert [type(item) for item in kernel.nests[1].body][-2:] == [Store, Accumulate]
    assert {item.name: int(item.elements) for item in kernel.scratch} == {"largest": 1, "powers": 3000, "total": 1}


def test_softmax_of_columns_takes_tiles_of_them():
    kernel = build(*softmax(40, 640, axis=0))
    assert modes(kernel.outer) == ["parallel 10"]
    assert [shape(nest) for nest in kernel.nests] == [
        (["vector 64"], ["serial 40"]),
        (["vector 64"], ["serial 40"]),
        (["serial 40", "vector 64"], []),
    ]
    assert {item.name: int(item.elements) for item in kernel.scratch} == {
        "largest": 64,
        "powers": 40 * 64,
        "total": 64,
    }


def test_tiles_of_columns_respect_the_memory_of_an_outer_point():
    kernel = build(*softmax(100, 160, axis=0), scratch_bytes=8_000)
    assert modes(kernel.outer) == ["parallel 10"]
    assert sum(int(item.elements) for item in kernel.scratch) * 4 <= 8_000
    without = build(*softmax(100, 160, axis=0), scratch_bytes=800)
    assert modes(without.outer) == ["parallel 160"]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_softmax_of_symbolic_sizes(axis, rows):
    symbol = size("s0")
    graph, outer = softmax(symbol, 70, axis)
    build(graph, outer, {symbol: rows})


def test_small_rows_go_together_with_scratch_for_each():
    kernel = build(*softmax(1024, 16, axis=1), width=4)
    assert modes(kernel.outer) == ["parallel 16"]
    assert {item.name: int(item.elements) for item in kernel.scratch}["powers"] == 64 * 16


def test_moments_of_rows_end_in_the_epilogue():
    draw = Drawing()
    x, weight = draw.tensor("x", 64, 300), draw.tensor("weight", 300)
    mean, squares = draw.called("moments").reduce(
        "welford", (64,), (300,), lambda kept, inner: x.at((*kept, *inner)), [torch.float32, torch.float32]
    )
    scale = draw.pointwise("scale", (64,), lambda i: apply("rsqrt", add(squares.at((i,)), one)))
    draw.pointwise(
        "y",
        (64, 300),
        lambda i, j: apply(
            "mul", apply("mul", apply("sub", x.at((i, j)), mean.at((i,))), scale.at((i,))), weight.at((j,))
        ),
    )
    kernel = build(draw.graph("y"), [(0,), (0,), (0,)])
    assert [shape(nest) for nest in kernel.nests] == [([], ["vector 300"]), (["vector 300"], [])]
    assert "rsqrt" in str(kernel.nests[0].finish)
    assert sorted(item.name for item in kernel.scratch) == ["moments", "scale"]


one = Constant(torch.float32, 1.0)


def test_an_invariant_of_two_sums_is_computed_in_their_epilogue():
    draw = Drawing()
    x = draw.tensor("x", 8, 3000)
    total = draw.fold("total", (8,), (3000,), lambda i, j: x.at((i, j)))
    draw.pointwise("y", (8, 3000), lambda i, j: apply("mul", x.at((i, j)), apply("div", one, total.at((i,)))))
    kernel = build(draw.graph("y"), [(0,), (0,)])
    assert len(kernel.nests) == 2 and "div" in str(kernel.nests[0].finish)
    assert [int(item.elements) for item in kernel.scratch] == [1]


def test_sums_of_one_tensor_are_one_pass():
    draw = Drawing()
    x, y = draw.tensor("x", 64, 300), draw.tensor("y", 64, 300)
    draw.fold("plain", (64,), (300,), lambda i, j: x.at((i, j)))
    draw.fold("product", (64,), (300,), lambda i, j: apply("mul", x.at((i, j)), y.at((i, j))))
    draw.fold("largest", (64,), (300,), lambda i, j: y.at((i, j)), "max")
    kernel = build(draw.graph("plain", "product", "largest"), [(0,)] * 3)
    (nest,) = kernel.nests
    assert sum(isinstance(item, Accumulate) for item in nest.body) == 3


def test_a_sum_of_columns_is_vectorised_along_them():
    draw = Drawing()
    x = draw.tensor("x", 200, 640)
    draw.fold("total", (640,), (200,), lambda j, i: x.at((i, j)))
    kernel = build(draw.graph("total"), [(0,)], width=4)
    assert modes(kernel.outer) == ["parallel 10"]
    assert [shape(nest) for nest in kernel.nests] == [(["vector 64"], ["serial 200"])]


def test_moments_of_channels_walk_images_flat():
    draw = Drawing()
    x = draw.tensor("x", 4, 6, 14, 14)
    draw.fold("total", (6,), (4, 14, 14), lambda c, n, h, w: x.at((n, c, h, w)))
    kernel = build(draw.graph("total"), [(0,)])
    assert modes(kernel.outer) == ["parallel 6"]
    assert shape(kernel.nests[0]) == ([], ["serial 4", "vector 196"])


def test_positions_keep_the_order_of_reduced_loops():
    draw = Drawing()
    x = draw.tensor("x", 5, 6, 7, strides=(42, 1, 6))
    draw.called("best").reduce("argmax", (5,), (6, 7), lambda kept, inner: x.at((*kept, *inner)), [torch.int64])
    kernel = build(draw.graph("best"), [(0,)])
    (nest,) = kernel.nests
    assert [int(loop.extent) for loop in nest.reduced] == [6, 7]


def test_short_windows_are_unrolled_with_masked_reads():
    draw = Drawing()
    x = draw.tensor("x", 8, 200)

    def window(i, j, k):
        position = j + k - 1
        low = apply("ge", IndexValue(torch.int64, position), Constant(torch.int64, 0))
        high = apply("lt", IndexValue(torch.int64, position), Constant(torch.int64, 200))
        return Load(torch.float32, "x", (i, position), (), apply("and", low, high), -1.0)

    assert x.rank == 2
    draw.fold("pooled", (8, 200), (3,), window, "max")
    kernel = build(draw.graph("pooled"), [(0, 1)], width=1)
    assert shape(kernel.nests[0])[0][-1] == "vector 200"
    assert shape(kernel.nests[0])[1] == ["unrolled 3"]


def test_short_reductions_of_gathered_lanes_stay_loops():
    draw = Drawing()
    x = draw.tensor("x", 400, 9)
    draw.fold("total", (400,), (9,), lambda i, j: x.at((i, j)))
    kernel = build(draw.graph("total"), [(0,)], width=1)
    assert shape(kernel.nests[0]) == (["vector 80"], ["serial 9"])


def test_reductions_of_one_or_no_value():
    for columns in (0, 1):
        draw = Drawing()
        x = draw.tensor("x", 6, columns)
        draw.fold("total", (6,), (columns,), lambda i, j, x=x: x.at((i, j)))
        build(draw.graph("total"), [(0,)])


def test_what_reads_other_points_stays_a_pass_of_its_own():
    draw = Drawing()
    x = draw.tensor("x", 32, 300)
    powers = draw.pointwise("powers", (32, 300), lambda i, j: exp(x.at((i, j))))
    draw.pointwise("turned", (32, 300), lambda i, j: powers.at((i, 299 - j)))
    kernel = build(draw.graph("turned"), [(0,), (0,)])
    assert len(kernel.nests) == 2 and [item.name for item in kernel.scratch] == ["powers"]
