"""Pointwise groups become flat, vectorised, tiled kernels."""

from __future__ import annotations

import pytest
import torch
from built_kernels import build, modes, shape
from drawn_graphs import Drawing, add, exp, size

from mixbackend.backends.codegen.ir.kernel import Let, Store
from mixbackend.backends.codegen.ir.scalar import Constant, apply

ROWS = size("s0")


def test_contiguous_tensors_are_one_flat_loop_in_chunks():
    draw = Drawing()
    x, y = draw.tensor("x", 4, 8, 320), draw.tensor("y", 4, 8, 320)
    draw.pointwise("z", (4, 8, 320), lambda i, j, k: add(exp(x.at((i, j, k))), y.at((i, j, k))))
    kernel = build(draw.graph("z"), [(0, 1, 2)], width=2)
    assert modes(kernel.outer) == ["parallel 8"]
    assert [shape(nest) for nest in kernel.nests] == [(["vector 1280"], [])]
    assert kernel.parameters == () and kernel.scratch == ()


def test_a_small_tensor_needs_no_outer_loop():
    draw = Drawing()
    x = draw.tensor("x", 3, 5)
    draw.pointwise("z", (3, 5), lambda i, j: exp(x.at((i, j))))
    kernel = build(draw.graph("z"), [(0, 1)])
    assert kernel.outer == () and shape(kernel.nests[0]) == (["vector 15"], [])


@pytest.mark.parametrize("rows", [1, 7, 500])
def test_symbolic_sizes_collapse_as_well(rows):
    draw = Drawing()
    draw.number("s0")
    x = draw.tensor("x", ROWS, 24)
    draw.pointwise("z", (ROWS, 24), lambda i, j: exp(x.at((i, j))))
    kernel = build(draw.graph("z"), [(0, 1)], {ROWS: rows})
    assert kernel.parameters == (ROWS,)
    assert modes(kernel.outer) == ["parallel FloorDiv(24*s0 + 1023, 1024)"]
    assert shape(kernel.nests[0])[0] == ["vector Min(1024, -1024*i1_tile + 24*s0)"]


def test_rows_with_a_bias_go_together():
    draw = Drawing()
    x, bias = draw.tensor("x", 512, 40), draw.tensor("bias", 40)
    draw.pointwise("z", (512, 40), lambda i, j: add(x.at((i, j)), bias.at((j,))))
    kernel = build(draw.graph("z"), [(0, 1)], width=4)
    assert modes(kernel.outer) == ["parallel 16"]
    assert shape(kernel.nests[0])[0] == ["serial 32", "vector 40"]


def test_loops_follow_the_layout_of_the_result():
    channels_last = (3 * 70 * 50, 1, 3 * 50, 3)
    draw = Drawing()
    x = draw.tensor("x", 2, 3, 70, 50, strides=channels_last)
    draw.pointwise("z", (2, 3, 70, 50), lambda n, c, h, w: exp(x.at((n, c, h, w))))
    draw.output("z", channels_last)
    kernel = build(draw.graph(), [(0, 1, 2, 3)])
    assert modes(kernel.outer) == ["parallel 21"]
    assert shape(kernel.nests[0])[0] == ["vector Min(1008, 21000 - 1008*i1_tile)"]


def test_a_transpose_is_cut_along_both_loops():
    draw = Drawing()
    x, y = draw.tensor("x", 96, 70), draw.tensor("y", 70, 96)
    draw.pointwise("z", (70, 96), lambda i, j: add(x.at((j, i)), y.at((i, j))))
    kernel = build(draw.graph("z"), [(0, 1)])
    assert modes(kernel.outer) == ["parallel 3", "parallel 3"]
    assert shape(kernel.nests[0])[0] == ["serial Min(32, 70 - 32*i0_tile)", "vector 32"]


@pytest.mark.nightly
def test_tiles_of_a_large_transpose_are_long_where_lines_are_written():
    draw = Drawing()
    x = draw.tensor("x", 4096, 2048)
    draw.pointwise("z", (2048, 4096), lambda i, j: exp(x.at((j, i))))
    kernel = build(draw.graph("z"), [(0, 1)])
    assert shape(kernel.nests[0])[0] == ["serial 64", "vector 256"]


def test_tiles_of_a_transpose_with_a_short_side_are_long_along_the_other():
    draw = Drawing()
    x = draw.tensor("x", 8, 64, 3136)
    draw.pointwise("z", (8, 3136, 64), lambda n, i, j: exp(x.at((n, j, i))))
    kernel = build(draw.graph("z"), [(0, 1, 2)])
    assert shape(kernel.nests[0])[0] == ["serial Min(256, 3136 - 256*i1_tile)", "vector 64"]


@pytest.mark.nightly
def test_runs_in_another_order_go_in_tiles_of_both_orders_if_they_are_pages_apart():
    draw = Drawing()
    x = draw.tensor("x", 2048, 64, 64)
    draw.pointwise("z", (64, 2048, 64), lambda h, r, c: exp(x.at((r, h, c))))
    kernel = build(draw.graph("z"), [(0, 1, 2)])
    assert shape(kernel.nests[0])[0] == ["serial 16", "serial 16", "vector 64"]


def test_runs_on_the_same_page_go_in_the_order_they_are_written():
    draw = Drawing()
    x = draw.tensor("x", 2048, 8, 64)
    draw.pointwise("z", (8, 2048, 64), lambda h, r, c: exp(x.at((r, h, c))))
    kernel = build(draw.graph("z"), [(0, 1, 2)])
    assert shape(kernel.nests[0])[0] == ["serial 64", "vector 64"]


def test_maps_of_one_point_are_one_body_and_pass_values_by_name():
    draw = Drawing()
    x = draw.tensor("x", 30, 40)
    first = draw.pointwise("first", (30, 40), lambda i, j: exp(x.at((i, j))))
    draw.pointwise("second", (30, 40), lambda i, j: add(first.at((i, j)), x.at((i, j))))
    kernel = build(draw.graph("first", "second"), [(0, 1), (0, 1)])
    (nest,) = kernel.nests
    assert [type(item) for item in nest.body].count(Store) == 2
    assert [buffer.access for buffer in kernel.buffers] == ["read", "write", "write"]


def test_private_values_need_no_memory():
    draw = Drawing()
    x = draw.tensor("x", 30, 40)
    first = draw.pointwise("first", (30, 40), lambda i, j: exp(x.at((i, j))))
    draw.pointwise("second", (30, 40), lambda i, j: apply("mul", first.at((i, j)), first.at((i, j))))
    kernel = build(draw.graph("second"), [(0, 1), (0, 1)])
    assert kernel.scratch == ()
    assert [type(item) for item in kernel.nests[0].body] == [Let, Store]


def test_a_forwarded_value_is_rounded_as_memory_would():
    draw = Drawing()
    x = draw.tensor("x", 64)
    third = Constant(torch.float32, 1 / 3)
    first = draw.called("first").map((64,), torch.bfloat16, lambda index: apply("mul", x.at(index), third))
    draw.pointwise("second", (64,), lambda i: first.at((i,)))
    kernel = build(draw.graph("second"), [(0,), (0,)])
    assert kernel.scratch == () and "round_bfloat16" in str(kernel)


def test_an_expensive_invariant_is_computed_before_its_loop():
    draw = Drawing()
    x, variance = draw.tensor("x", 8, 5000), draw.tensor("variance", 8)
    draw.pointwise("z", (8, 5000), lambda i, j: apply("mul", x.at((i, j)), apply("exp", variance.at((i,)))))
    kernel = build(draw.graph("z"), [(0, 1)])
    assert [shape(nest)[0] for nest in kernel.nests] == [[], ["vector Min(1008, 5000 - 1008*i1_tile)"]]
    assert [int(item.elements) for item in kernel.scratch] == [1]
    assert "exp" in str(kernel.nests[0]) and "exp" not in str(kernel.nests[1])


def test_an_invariant_of_some_inner_loops_gets_a_value_for_each():
    draw = Drawing()
    x, variance = draw.tensor("x", 512, 16), draw.tensor("variance", 512)
    draw.pointwise("z", (512, 16), lambda i, j: apply("mul", x.at((i, j)), exp(variance.at((i,)))))
    kernel = build(draw.graph("z"), [(0, 1)], width=1)
    assert [shape(nest)[0] for nest in kernel.nests] == [["vector 128"], ["serial 128", "vector 16"]]
    assert [int(item.elements) for item in kernel.scratch] == [128]


def test_a_vector_of_values_that_all_rows_share_is_computed_once():
    draw = Drawing()
    x, angle = draw.tensor("x", 64, 40), draw.tensor("angle", 40)
    draw.pointwise("z", (64, 40), lambda i, j: apply("mul", x.at((i, j)), apply("cos", angle.at((j,)))))
    kernel = build(draw.graph("z"), [(0, 1)], width=1)
    assert [shape(nest)[0] for nest in kernel.nests] == [["vector 40"], ["serial 16", "vector 40"]]
    assert "cos" in str(kernel.nests[0]) and "cos" not in str(kernel.nests[1])


def test_a_loop_of_two_values_is_no_vector():
    draw = Drawing()
    x = draw.tensor("x", 40, 56)
    draw.pointwise("z", (40, 56, 2), lambda i, j, k: x.at((i, j)))
    kernel = build(draw.graph("z"), [(0, 1, 2)])
    assert shape(kernel.nests[0])[0] == ["serial 2", "vector Min(752, 2240 - 752*i1_tile)"]


def test_common_parts_are_computed_once():
    draw = Drawing()
    x = draw.tensor("x", 40)
    draw.pointwise("z", (40,), lambda i: apply("mul", exp(x.at((i,))), add(exp(x.at((i,))), x.at((i,)))))
    kernel = build(draw.graph("z"), [(0,)])
    assert str(kernel.nests[0]).count("exp(") == 1


def test_an_expanded_result_is_written_once():
    draw = Drawing()
    x = draw.tensor("x", 6)
    draw.pointwise("z", (5, 6), lambda i, j: exp(x.at((j,))))
    draw.output("z", (0, 1))
    kernel = build(draw.graph(), [(1,)])
    assert shape(kernel.nests[0])[0] == ["vector 6"]


@pytest.mark.parametrize("copies", [0, size("n") - 1])
def test_an_expanded_result_without_elements_is_not_written(copies):
    """One value for all copies is one too many where there are none: the memory has no room for it."""
    draw = Drawing()
    draw.number("n")
    x = draw.tensor("x", 6)
    draw.pointwise("z", (6, copies), lambda i, j: exp(x.at((i,))))
    draw.output("z", (1, 0))
    build(draw.graph(), [(0,)], {size("n"): 1})


def test_scalars_and_empty_tensors():
    for sizes in [(), (0,), (0, 7), (7, 0)]:
        draw = Drawing()
        x = draw.tensor("x", *sizes)
        draw.pointwise("z", sizes, lambda *index, x=x: exp(x.at(index)))
        build(draw.graph("z"), [tuple(range(len(sizes)))])


def test_work_grows_with_size_and_cost():
    def work(rows: int, function):
        draw = Drawing()
        x = draw.tensor("x", rows, 64)
        draw.pointwise("z", (rows, 64), lambda i, j: function(x.at((i, j))))
        return int(build(draw.graph("z"), [(0, 1)]).work)

    assert work(40, exp) > 1.9 * work(20, exp) > 4 * work(20, lambda value: add(value, value))
