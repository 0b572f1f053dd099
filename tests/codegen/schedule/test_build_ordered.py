"""Concatenations, scans and scatters: nests of several lengths, loops that keep their order."""

from __future__ import annotations

import pytest
import sympy
import torch
from built_kernels import build, layouts_of, modes, one_group, shape
from drawn_graphs import Drawing, cpu_traits, exp

from mixbackend.backends.codegen.ir.kernel import Store
from mixbackend.backends.codegen.ir.scalar import Constant, IndexValue, apply
from mixbackend.backends.codegen.schedule.build import build_kernel


def joined(axis, *shapes):
    """A concatenation of exponentials; the other loop is shared."""
    draw = Drawing()
    parts = []
    for number, sizes in enumerate(shapes):
        x = draw.tensor(f"x{number}", *sizes)
        parts.append((sizes[axis], lambda index, x=x: exp(x.at(index))))
    sizes = list(shapes[0])
    sizes[axis] = sum(item[axis] for item in shapes)
    draw.called("y").concatenate(sizes, axis, parts, torch.float32)
    return draw.graph("y"), [tuple(place for place in range(len(sizes)) if place != axis)]


def test_rows_put_below_each_other_are_flat_pieces_of_even_work():
    kernel = build(*joined(0, (300, 100), (20, 100)), width=2)
    assert modes(kernel.outer) == ["parallel 7"]
    assert [modes(nest.loops) for nest in kernel.nests] == [
        ["vector Max(0, Min(4288, 30000 - 4288*piece))"],
        ["vector Max(0, Min(320, 2000 - 320*piece))"],
    ]


def test_columns_put_beside_each_other_share_the_loop_over_rows():
    kernel = build(*joined(1, (80, 100), (80, 20)), width=2)
    assert modes(kernel.outer) == ["parallel 10"]
    assert [shape(nest)[0] for nest in kernel.nests] == [["serial 8", "vector 100"], ["serial 8", "vector 20"]]


def test_images_put_behind_each_other_are_flat_within_an_image():
    draw = Drawing()
    x, y = draw.tensor("x", 32, 3, 50), draw.tensor("y", 32, 5, 50)
    parts = [(3, lambda index: exp(x.at(index))), (5, lambda index: y.at(index))]
    draw.called("z").concatenate((32, 8, 50), 1, parts, torch.float32)
    kernel = build(draw.graph("z"), [(0, 2)], width=8)
    assert modes(kernel.outer) == ["parallel 32"]
    assert [modes(nest.loops) for nest in kernel.nests] == [["vector 150"], ["vector 250"]]


def test_a_concatenation_is_read_where_it_was_put_together():
    draw = Drawing()
    x = draw.tensor("x", 64, 32)
    parts = [
        (16, lambda index: apply("neg", x.at((index[0], index[1] + 16)))),
        (16, lambda index: x.at(index)),
    ]
    turned = draw.called("turned").concatenate((64, 32), 1, parts, torch.float32)
    draw.pointwise("y", (64, 32), lambda i, j: apply("mul", x.at((i, j)), turned.at((i, j))))
    kernel = build(draw.graph("y"), [(0,), (0,)])
    assert len(kernel.nests) == 3 and [item.name for item in kernel.scratch] == ["turned"]


def summed(axis, *sizes):
    """Running sums of exponentials, doubled."""
    draw = Drawing()
    x = draw.tensor("x", *sizes)
    sums = draw.called("sums").scan("sum", sizes, axis, lambda index: exp(x.at(index)), torch.float32)
    draw.pointwise("y", sizes, lambda *index: apply("mul", sums.at(index), sums.at(index)))
    return draw.graph("y"), [tuple(place for place in range(len(sizes)) if place != axis)] * 2


def test_a_scan_along_rows_runs_in_order_and_is_used_on_the_way():
    kernel = build(*summed(1, 64, 30), width=1)
    assert kernel.scratch == ()
    assert [shape(nest)[0] for nest in kernel.nests] == [["vector 64", "ordered 30"]]


def test_a_scan_down_columns_is_vectorised_across_them():
    kernel = build(*summed(0, 20, 640))
    assert modes(kernel.outer) == ["parallel 10"]
    assert [shape(nest)[0] for nest in kernel.nests] == [["vector 64", "ordered 20"]]


def scattered(mode, destination):
    """Updates [20, 30] written into rows of [7, 30] that collide, or wherever ``destination`` says."""
    draw = Drawing()
    x, updates = draw.tensor("x", 7, 30), draw.tensor("updates", 20, 30)
    row = draw.tensor("row", 20, dtype=torch.int64)

    def place(index):
        symbol = draw.bound_symbol(7)
        return destination(index, symbol), ((symbol, row.at((index[0],))),)

    draw.called("y").scatter((7, 30), torch.float32, x.at, (20, 30), place, updates.at, mode)
    return draw.graph("y")


@pytest.mark.parametrize("mode", ["set", "add", "max"])
def test_colliding_rows_are_written_in_order_and_vectorised_across(mode):
    graph = scattered(mode, lambda index, symbol: (symbol, index[1]))
    kernel = build(graph, [(1,)])
    _, update = kernel.nests
    assert modes(update.loops) == ["ordered 20", "vector 30"]
    assert [item.mode for item in update.body if isinstance(item, Store)] == [mode]


def test_without_a_loop_of_its_own_every_update_is_in_order():
    graph = scattered("add", lambda index, symbol: (symbol, sympy.Integer(3)))
    kernel = build(graph, [()])
    assert modes(kernel.nests[1].loops) == ["ordered 20", "ordered 30"]


def test_a_masked_update_at_shifted_places():
    draw = Drawing()
    x, updates = draw.tensor("x", 40), draw.tensor("updates", 30)
    draw.called("y").scatter(
        (40,),
        torch.float32,
        x.at,
        (30,),
        lambda index: ((index[0] + 5,), ()),
        updates.at,
        mask=lambda index: apply("lt", IndexValue(torch.int64, index[0]), Constant(torch.int64, 11)),
    )
    kernel = build(draw.graph("y"), [()])
    assert modes(kernel.nests[1].loops) == ["vector 30"]


def test_a_scan_axis_outside_is_no_group():
    graph, _ = summed(0, 8, 8)
    group = one_group(graph, [(0,), (0,)])
    with pytest.raises(ValueError, match="axis"):
        build_kernel(group, layouts_of(graph), cpu_traits(), {})


def test_a_private_tensor_read_at_another_outer_point_is_no_group():
    draw = Drawing()
    x = draw.tensor("x", 8, 8)
    first = draw.pointwise("first", (8, 8), lambda i, j: exp(x.at((i, j))))
    draw.pointwise("y", (8, 8), lambda i, j: first.at((7 - i, j)))
    graph = draw.graph("y")
    with pytest.raises(ValueError, match="private"):
        build_kernel(one_group(graph, [(0,), (0,)]), layouts_of(graph), cpu_traits(), {})
