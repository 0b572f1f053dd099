"""Which stages of drawn graphs become one kernel, which do not, and the reasons given."""

from __future__ import annotations

import pytest
import torch
from drawn_graphs import Drawing, add, cpu_traits, exp, size

from mixbackend.backends.codegen.ir.stages import Loop, StageGraph, targets_of
from mixbackend.backends.codegen.schedule.check_groups import check_groups
from mixbackend.backends.codegen.schedule.group import Group
from mixbackend.backends.codegen.schedule.grouping import choose_layouts, group_stages
from mixbackend.backends.codegen.schedule.rewrite import renamed
from mixbackend.backends.codegen.schedule.split_loops import split_loops
from mixbackend.contracts import IrError

ROWS, COLUMNS = 2048, 768


def grouped(graph, fuel=None, **traits):
    groups, refusals = group_stages(graph, choose_layouts(graph), cpu_traits(**traits), fuel)
    check_groups(graph, groups)
    return groups, refusals


def names(groups):
    return [[name for stage in group.stages for name in targets_of(stage)] for group in groups]


def extents(group):
    return [str(loop.size) for loop in group.outer]


def drawn_softmax(rows=ROWS, columns=COLUMNS):
    draw = Drawing()
    x = draw.tensor("x", rows, columns)
    top = draw.fold("top", (rows,), (columns,), lambda i, k: x.at((i, k)), "max")
    power = draw.pointwise("power", (rows, columns), lambda i, j: exp(add(x.at((i, j)), top.at((i,)))))
    total = draw.fold("total", (rows,), (columns,), lambda i, k: power.at((i, k)))
    draw.pointwise("y", (rows, columns), lambda i, j: add(power.at((i, j)), total.at((i,))))
    return draw.graph("y")


def test_softmax_is_one_kernel_over_rows():
    (group,), refusals = grouped(drawn_softmax())
    assert extents(group) == ["2048"]
    assert group.private == {"top", "power", "total"}
    assert refusals == ()


def test_symbolic_rows_and_columns():
    draw = Drawing()
    rows, columns = draw.number("s0"), draw.number("s1")
    x = draw.tensor("x", rows, columns)
    total = draw.fold("total", (rows,), (columns,), lambda i, k: x.at((i, k)))
    draw.pointwise("y", (rows, columns), lambda i, j: add(x.at((i, j)), total.at((i,))))
    (group,), _ = grouped(draw.graph("y"))
    assert extents(group) == ["s0"] and group.private == {"total"}


def test_slices_too_large_for_scratch_live_in_memory():
    (group,), _ = grouped(drawn_softmax(), scratch_bytes=1024)
    assert group.private == {"top", "total"}


def drawn_channel_statistics(count: int) -> StageGraph:
    draw = Drawing()
    x = draw.tensor("x", count, 64, 14, 14)
    mean = draw.fold("mean", (64,), (count, 14, 14), lambda c, n, h, w: x.at((n, c, h, w)))
    square = draw.fold("square", (64,), (count, 14, 14), lambda c, n, h, w: exp(x.at((n, c, h, w))))
    sizes = (count, 64, 14, 14)
    draw.pointwise("y", sizes, lambda n, c, h, w: add(x.at((n, c, h, w)), mean.at((c,)), square.at((c,))))
    return draw.graph("y")


def test_statistics_over_channels_share_the_channel_loop():
    (group,), _ = grouped(drawn_channel_statistics(4))
    assert extents(group) == ["64"] and group.private == {"mean", "square"}


def test_memory_beyond_the_caches_is_not_walked_in_short_pieces_twice():
    groups, _ = grouped(drawn_channel_statistics(256))
    assert names(groups) == [["mean", "square"], ["y"]]
    assert extents(groups[1]) == ["256", "64", "14", "14"]


def test_channels_last_statistics_stay_apart_from_what_they_normalise():
    draw = Drawing()
    x = draw.tensor("x", 32, 64, 14, 14, strides=(64 * 196, 1, 14 * 64, 64))
    mean = draw.fold("mean", (64,), (32, 14, 14), lambda c, n, h, w: x.at((n, c, h, w)))
    draw.pointwise("y", (32, 64, 14, 14), lambda n, c, h, w: add(x.at((n, c, h, w)), mean.at((c,))))
    draw.output("y", (64 * 196, 1, 14 * 64, 64))
    groups, (refusal,) = grouped(draw.graph())
    assert names(groups) == [["mean"], ["y"]]
    assert (refusal.first, refusal.second) == ("mean", "y")
    assert "strided" in refusal.reason
    assert extents(groups[1]) == ["32", "14", "14", "64"]


def test_loops_are_permuted_to_match():
    draw = Drawing()
    x = draw.tensor("x", 64, 512, 96)
    total = draw.fold("total", (512, 64), (96,), lambda j, i, k: x.at((i, j, k)))
    draw.pointwise("y", (64, 512, 96), lambda i, j, k: add(x.at((i, j, k)), total.at((j, i))))
    (group,), _ = grouped(draw.graph("y"))
    assert sorted(extents(group)) == ["512", "64"] and group.private == {"total"}


def test_reshaped_statistics_share_loops_after_splitting():
    draw = Drawing()
    x = draw.tensor("x", 2048, 128)
    total = draw.fold("total", (2048,), (128,), lambda i, k: x.at((i, k)))
    draw.pointwise("y", (64, 32, 128), lambda i, j, k: add(x.at((32 * i + j, k)), total.at((32 * i + j,))))
    whole = draw.graph("y")
    assert len(grouped(whole)[0]) == 2
    (group,), _ = grouped(split_loops(whole))
    assert extents(group) == ["64", "32"]


def test_a_consumer_in_transposed_order_stays_apart():
    draw = Drawing()
    x = draw.tensor("x", ROWS, COLUMNS)
    total = draw.fold("total", (ROWS,), (COLUMNS,), lambda i, k: x.at((i, k)))
    weight = draw.tensor("weight", COLUMNS, ROWS)
    draw.pointwise("y", (COLUMNS, ROWS), lambda j, i: add(weight.at((j, i)), total.at((i,))))
    groups, (refusal,) = grouped(draw.graph("y"))
    assert len(groups) == 2 and "strided" in refusal.reason


def test_a_total_leaves_a_large_map_parallel():
    draw = Drawing()
    x = draw.tensor("x", ROWS, COLUMNS)
    large = draw.pointwise("large", (ROWS, COLUMNS), lambda i, j: exp(x.at((i, j))))
    draw.fold("total", (), (ROWS, COLUMNS), lambda i, j: large.at((i, j)))
    groups, (refusal,) = grouped(draw.graph("large", "total"))
    assert len(groups) == 2 and "share no loop" in refusal.reason


def test_tiny_tensors_are_one_kernel_whatever_their_loops():
    draw = Drawing()
    x = draw.tensor("x", 16, 8)
    small = draw.pointwise("small", (16, 8), lambda i, j: exp(x.at((i, j))))
    draw.fold("total", (), (16, 8), lambda i, j: small.at((i, j)))
    (group,), _ = grouped(draw.graph("small", "total"))
    assert group.outer == () and group.private == frozenset()


def test_few_rows_are_not_worth_losing_the_columns_for():
    draw = Drawing()
    x = draw.tensor("x", 2, 1 << 20)
    total = draw.fold("total", (2,), (1 << 20,), lambda i, k: x.at((i, k)))
    draw.pointwise("y", (2, 1 << 20), lambda i, j: exp(add(x.at((i, j)), total.at((i,)))))
    groups, (refusal,) = grouped(draw.graph("y"))
    assert len(groups) == 2 and "2 points" in refusal.reason


def test_reductions_of_one_tensor_share_a_kernel():
    draw = Drawing()
    x, y = draw.tensor("x", ROWS, COLUMNS), draw.tensor("y", ROWS, COLUMNS)
    draw.fold("gamma", (COLUMNS,), (ROWS,), lambda j, k: exp(add(x.at((k, j)), y.at((k, j)))))
    draw.fold("beta", (COLUMNS,), (ROWS,), lambda j, k: x.at((k, j)))
    (group,), _ = grouped(draw.graph("gamma", "beta"))
    assert extents(group) == [str(COLUMNS)] and not group.private


def test_independent_maps_of_equal_sizes_share_a_kernel_up_to_a_limit():
    draw = Drawing()
    for number in range(20):
        x = draw.tensor(f"x{number}", 128, 64)
        draw.pointwise(f"y{number}", (128, 64), lambda i, j, x=x: exp(x.at((i, j))))
    groups, _ = grouped(draw.graph(*(f"y{number}" for number in range(20))))
    assert [len(group.stages) for group in groups] == [15, 5]


def test_two_readers_of_a_square_matrix_are_not_aligned_by_chance():
    draw = Drawing()
    x = draw.tensor("x", 512, 512)
    draw.fold("rows", (512,), (512,), lambda i, k: x.at((i, k)))
    draw.fold("columns", (512,), (512,), lambda j, k: x.at((k, j)))
    groups, _ = grouped(draw.graph("rows", "columns"))
    assert len(groups) == 2


def test_a_third_kernel_between_two():
    draw = Drawing()
    x = draw.tensor("x", ROWS, COLUMNS)
    first = draw.pointwise("first", (ROWS, COLUMNS), lambda i, j: exp(x.at((i, j))))
    total = draw.fold("total", (), (ROWS, COLUMNS), lambda i, j: first.at((i, j)))
    draw.pointwise("last", (ROWS, COLUMNS), lambda i, j: add(first.at((i, j)), total.at(())))
    groups, refusals = grouped(draw.graph("last"))
    assert names(groups) == [["first"], ["total"], ["last"]]
    assert "a third kernel" in next(item.reason for item in refusals if {item.first, item.second} == {"first", "last"})


def test_a_scan_shares_all_but_its_axis():
    draw = Drawing()
    x = draw.tensor("x", ROWS, 256)
    swept = draw.called("swept").scan("sum", (ROWS, 256), 1, lambda index: exp(x.at(index)), torch.float32)
    draw.pointwise("y", (ROWS, 256), lambda i, j: exp(swept.at((i, j))))
    (group,), _ = grouped(draw.graph("y"))
    assert extents(group) == [str(ROWS)] and group.private == {"swept"}


def test_a_concatenation_shares_all_but_its_axis():
    draw = Drawing()
    x = draw.tensor("x", ROWS, 256)
    both = draw.called("both").concatenate((ROWS, 512), 1, [(256, x.at), (256, x.at)], torch.float32)
    draw.fold("y", (ROWS,), (512,), lambda i, k: both.at((i, k)))
    (group,), _ = grouped(draw.graph("y"))
    assert extents(group) == [str(ROWS)] and group.private == {"both"}


def drawn_scatter(aligned):
    """Updates along rows of the target, or anywhere in it."""
    draw = Drawing()
    x, to = draw.tensor("x", 512, 64), draw.tensor("to", 512, 64, dtype=torch.int64)
    base = draw.pointwise("base", (512, 100), lambda i, j: exp(x.at((i, 0))))
    symbol, other = draw.bound_symbol(100), draw.bound_symbol(512)
    row_bindings = () if aligned else ((other, to.at),)

    def destination(index):
        pairs = tuple((name, reader(index)) for name, reader in row_bindings)
        return (index[0] if aligned else other, symbol), ((symbol, to.at(index)), *pairs)

    made = draw.called("made").scatter((512, 100), torch.float32, base.at, (512, 64), destination, x.at, mode="add")
    draw.fold("y", (512,), (100,), lambda i, k: made.at((i, k)))
    return draw.graph("y")


def test_a_scatter_shares_the_rows_it_keeps_apart():
    (group,), _ = grouped(drawn_scatter(aligned=True))
    assert extents(group) == ["512"]
    scatter = next(stage for stage in group.stages if targets_of(stage) == ("made",))
    outer = group.outer[0].index
    assert scatter.target_loops[0].index == scatter.loops[0].index == scatter.destination[0] == outer
    assert group.private == {"base", "made"}


def test_a_scatter_anywhere_shares_no_loop():
    groups, _ = grouped(drawn_scatter(aligned=False))
    made = next(group for group in groups if "made" in names([group])[0])
    assert made.outer == ()


def test_an_expanded_output_is_not_written_by_many_outer_points():
    draw = Drawing()
    x = draw.tensor("x", 128)
    draw.pointwise("y", (64, 128), lambda i, j: exp(x.at((j,))))
    draw.output("y", (0, 1))
    (group,), _ = grouped(draw.graph())
    assert extents(group) == ["128"]


def test_fuel_counts_fusions():
    graph = drawn_softmax()
    for fuel in range(4):
        groups, refusals = grouped(graph, fuel)
        assert len(groups) == 4 - fuel
        assert ("out of fuel" in {item.reason for item in refusals}) == (fuel < 3)


def test_the_innermost_outer_loop_is_the_most_contiguous():
    draw = Drawing()
    x = draw.tensor("x", 8, 16, 32, strides=(1, 8 * 32, 8))
    draw.pointwise("y", (8, 16, 32), lambda i, j, k: exp(x.at((i, j, k))))
    draw.output("y", (1, 8 * 32, 8))
    (group,), _ = grouped(draw.graph())
    assert extents(group) == ["16", "32", "8"]


def test_equal_graphs_give_equal_groups():
    assert grouped(drawn_softmax()) == grouped(drawn_softmax())


def test_loops_of_one_value_stay_inside():
    draw = Drawing()
    x = draw.tensor("x", ROWS, COLUMNS)
    total = draw.fold("total", (ROWS, 1), (COLUMNS,), lambda i, one, k: x.at((i, k)))
    draw.pointwise("y", (ROWS, COLUMNS), lambda i, j: add(x.at((i, j)), total.at((i, 0))))
    (group,), _ = grouped(draw.graph("y"))
    assert extents(group) == [str(ROWS)]


def broken(graph, change):
    groups, _ = grouped(graph)
    with pytest.raises(IrError) as caught:
        check_groups(graph, [change(group) for group in groups])
    return str(caught.value)


def test_the_checker_finds_what_is_broken():
    graph = drawn_softmax()
    (group,), _ = grouped(graph)
    column = group.stages[1].loops[1]
    both = Group((*group.outer, column), group.stages, group.private)
    assert "'top',) has no kept loop" in broken(graph, lambda _: both)
    assert "is in no group" in broken(graph, lambda g: Group(g.outer, g.stages[:-1], g.private))
    assert "before it is made" in broken(graph, lambda g: Group(g.outer, g.stages[::-1], g.private))
    assert "twice" in broken(graph, lambda g: Group(g.outer, g.stages + g.stages[:1], g.private))
    assert "private and an output" in broken(graph, lambda g: Group(g.outer, g.stages, frozenset({"y"})))
    assert "does not make" in broken(graph, lambda g: Group(g.outer, g.stages, frozenset({"x"})))
    longer = Loop(group.outer[0].index, size("s0"))
    assert "the group s0" in broken(graph, lambda g: Group((longer,), g.stages, g.private))


def test_the_checker_finds_reads_at_another_point():
    draw = Drawing()
    x = draw.tensor("x", 64, 64)
    turned = draw.pointwise("turned", (64, 64), lambda i, j: exp(x.at((i, j))))
    draw.pointwise("y", (64, 64), lambda i, j: exp(turned.at((j, i))))
    graph = draw.graph("y")
    first, second = graph.stages
    pairs = zip(second.loops, first.loops, strict=True)
    moved = renamed(second, {old.index: new.index for old, new in pairs})
    with pytest.raises(IrError, match="instead of"):
        check_groups(graph, [Group(first.loops, (first, moved), frozenset({"turned"}))])
    with pytest.raises(IrError, match="private and read elsewhere"):
        check_groups(graph, [Group(first.loops, (first,), frozenset({"turned"})), Group((), (second,), frozenset())])


def drawn_plane_and_windows(size: int) -> StageGraph:
    """A map over a channels-last image, and sums of its windows per channel."""
    draw = Drawing()
    strides = (size * 64, 64, 1)
    x = draw.tensor("x", size, size, 64, strides=strides)
    made = draw.pointwise("made", (size, size, 64), lambda h, w, c: exp(x.at((h, w, c))))
    draw.fold("y", (size - 2, size - 2, 64), (3, 3), lambda h, w, c, k, m: made.at((h + k, w + m, c)))
    draw.output("y", ((size - 2) * 64, 64, 1))
    return draw.graph()


def test_planes_too_large_for_vectors_of_channels_are_not_kept_inside():
    """One plane would fit into scratch, but not those of two vectors of channels: their lanes would be gathered."""
    assert len(grouped(drawn_plane_and_windows(8))[0]) == 1
    assert len(grouped(drawn_plane_and_windows(56))[0]) == 2
