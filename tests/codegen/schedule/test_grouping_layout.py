"""Layouts of tensors between stages follow what they are made from."""

from __future__ import annotations

from drawn_graphs import Drawing, add, exp, size

from mixbackend.backends.codegen.schedule.layout import choose_layouts, dense_strides

CHANNELS_LAST = (3 * 4 * 5, 1, 5 * 3, 3)


def strides(graph, name):
    return tuple(choose_layouts(graph)[name].strides)


def test_dense_strides_in_any_order():
    assert dense_strides((2, 3, 4), (0, 1, 2)) == (12, 4, 1)
    assert dense_strides((2, 3, 4), (0, 2, 1)) == (12, 1, 3)
    rows = size("s0")
    assert dense_strides((rows, rows), (1, 0)) == (1, rows)


def test_a_channels_last_chain_stays_channels_last():
    draw = Drawing()
    x = draw.tensor("x", 2, 3, 4, 5, strides=CHANNELS_LAST)
    bias = draw.tensor("bias", 3)
    first = draw.pointwise("first", (2, 3, 4, 5), lambda n, c, h, w: add(bias.at((c,)), x.at((n, c, h, w))))
    draw.pointwise("second", (2, 3, 4, 5), lambda n, c, h, w: exp(first.at((n, c, h, w))))
    draw.pointwise("y", (2, 3, 4, 5), lambda n, c, h, w: exp(first.at((n, c, h, w))))
    graph = draw.graph("y")
    assert strides(graph, "first") == strides(graph, "second") == CHANNELS_LAST
    assert strides(graph, "y") == (60, 20, 5, 1)


def test_a_transposed_read_is_followed():
    draw = Drawing()
    x = draw.tensor("x", 6, 7)
    draw.pointwise("turned", (7, 6), lambda i, j: x.at((j, i)))
    assert strides(draw.graph(), "turned") == (1, 7)


def test_reductions_follow_their_kept_loops():
    draw = Drawing()
    x = draw.tensor("x", 2, 3, 4, 5, strides=CHANNELS_LAST)
    draw.fold("over_width", (2, 3, 4), (5,), lambda n, c, h, w: x.at((n, c, h, w)))
    assert strides(draw.graph(), "over_width") == (12, 1, 3)


def test_what_is_made_from_nothing_follows_its_readers():
    draw = Drawing()
    mask = draw.tensor("mask", 3)
    made = draw.pointwise("made", (2, 3, 4, 5), lambda n, c, h, w: exp(mask.at((c,))))
    draw.pointwise("y", (2, 3, 4, 5), lambda n, c, h, w: made.at((n, c, h, w)))
    draw.output("y", CHANNELS_LAST)
    assert strides(draw.graph(), "made") == CHANNELS_LAST


def test_expanded_inputs_say_nothing():
    draw = Drawing()
    x = draw.tensor("x", 4, 5, strides=(0, 0))
    draw.pointwise("made", (4, 5), lambda i, j: exp(x.at((i, j))))
    assert strides(draw.graph(), "made") == (5, 1)


def test_the_largest_of_two_layouts_decides():
    draw = Drawing()
    x = draw.tensor("x", 4, 5, 6)
    y = draw.tensor("y", 4, 5, strides=(1, 4))
    draw.pointwise("made", (4, 5, 6), lambda i, j, k: add(y.at((i, j)), x.at((i, j, k))))
    assert strides(draw.graph(), "made") == (30, 6, 1)
