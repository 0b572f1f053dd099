"""The passes of build, each on statements written by hand."""

from __future__ import annotations

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import FloorDiv, index_symbol
from mixbackend.backends.codegen.ir.kernel import Accumulate, KernelLoop, Let, Nest, Scratch, Store
from mixbackend.backends.codegen.ir.scalar import Constant, IndexValue, Local, Read, apply
from mixbackend.backends.codegen.schedule.collapse import collapse_nest
from mixbackend.backends.codegen.schedule.draft import Draft, coefficient
from mixbackend.backends.codegen.schedule.forward import forward_values
from mixbackend.backends.codegen.schedule.loop_order import order_nest
from mixbackend.backends.codegen.schedule.nests import combine
from mixbackend.backends.codegen.schedule.sharing import share_common

A, B, C = index_symbol("i"), index_symbol("j"), index_symbol("k")
F32 = torch.float32


def read(buffer, offset, **more):
    return Read(F32, buffer, sympy.sympify(offset), **more)


def exp(value):
    return apply("exp", value)


def loop(index, extent, mode="serial"):
    return KernelLoop(index, sympy.sympify(extent), mode)


def nest(loops, *body, reduced=(), finish=()):
    return Nest(tuple(loops), tuple(reduced), tuple(body), tuple(finish))


def draft(*nests, scratch=(), buffers=("x", "y", "z"), dtype=F32):
    dtypes = dict.fromkeys((*buffers, *(item.name for item in scratch)), dtype)
    return Draft((), nests, tuple(scratch), dtypes)


def test_coefficients_of_linear_expressions_only():
    size = sympy.Symbol("s0", integer=True, positive=True)
    assert coefficient(3 * A * size + A + B, A) == 3 * size + 1
    assert coefficient(3 * B, A) == 0
    assert coefficient(A * A, A) is None
    assert coefficient(FloorDiv(A, 4) + A, A) is None
    assert coefficient(sympy.Min(A, 3), A) is None


def test_loops_merge_only_where_everything_is_linear_in_both():
    flat = nest([loop(A, 4), loop(B, 6)], Store("y", 6 * A + B, read("x", 6 * A + B)))
    merged = collapse_nest(flat)
    assert merged.loops == (loop(B, 24),) and merged.body == (Store("y", B, read("x", B)),)
    for other in (
        read("x", A + 4 * B),
        read("x", FloorDiv(B, 2)),
        IndexValue(F32, B),
        read("x", 6 * A + B, mask=apply("lt", IndexValue(torch.int64, A), Constant(torch.int64, 2))),
    ):
        apart = nest([loop(A, 4), loop(B, 6)], Store("y", 6 * A + B, other))
        assert collapse_nest(apart) == apart


def test_reduced_loops_merge_against_their_order_unless_it_counts():
    value = read("x", A + 4 * B)
    for kind, count in (("sum", 1), ("argmax", 2)):
        result = Local(F32 if kind == "sum" else torch.int64, "r")
        folded = nest(
            [], Accumulate(("r",), kind, value), reduced=[loop(A, 4), loop(B, 6)], finish=[Store("y", C * 0, result)]
        )
        assert len(collapse_nest(folded).reduced) == count


def test_nests_of_equal_points_combine_whatever_their_indices_are_called():
    first = nest([loop(A, 8), loop(B, 8)], Store("t", 8 * A + B, exp(read("x", 8 * A + B))))
    turned = nest([loop(C, 8), loop(A, 8)], Store("y", 8 * A + C, read("t", 8 * A + C)))
    combined = combine(first, turned)
    assert combined is not None and combined.loops == first.loops
    assert combined.body[1] == Store("y", 8 * A + B, read("t", 8 * A + B))


def test_nests_stay_apart_where_another_point_is_read_or_overwritten():
    first = nest([loop(A, 8)], Store("t", A, exp(read("x", A))))
    assert combine(first, nest([loop(B, 8)], Store("y", B, read("t", 7 - B)))) is None
    assert (
        combine(nest([loop(A, 8)], Store("y", A, read("t", 7 - A))), nest([loop(B, 8)], Store("t", B, read("x", B))))
        is None
    )
    assert combine(first, nest([loop(B, 9)], Store("y", B, read("x", B)))) is None
    assert combine(first, nest([loop(B, 8)], Store("y", B, read("z", B)))) is None


def test_a_sum_does_not_take_what_needs_it_into_its_body():
    total = nest(
        [], Accumulate(("r",), "sum", read("x", A)), reduced=[loop(A, 8)], finish=[Store("t", C * 0, Local(F32, "r"))]
    )
    uses = nest([loop(B, 8)], Store("y", B, apply("div", read("x", B), read("t", 0))))
    assert combine(total, uses) is None
    scalar = nest([], Store("y", C * 0, exp(read("t", 0))))
    combined = combine(total, scalar)
    assert combined is not None and len(combined.finish) == 2


def test_updates_combine_with_nothing():
    base = nest([loop(A, 8)], Store("t", A, read("x", A)))
    update = nest([loop(B, 8, "ordered")], Store("t", B, read("x", B), mode="add"))
    assert combine(base, update) is None


def test_a_value_is_forwarded_under_the_mask_of_its_reader():
    mask = apply("lt", IndexValue(torch.int64, A), Constant(torch.int64, 2))
    body = [Store("t", A, exp(read("x", A))), Store("y", A, read("t", A, mask=mask, other=5.0))]
    made = forward_values(draft(nest([loop(A, 4)], *body), scratch=[Scratch("t", F32, sympy.Integer(4))]))
    assert made.scratch == ()
    let, store = made.nests[0].body
    assert let == Let("%v0", exp(read("x", A)))
    assert store.value == apply("where", mask, Local(F32, "%v0"), Constant(F32, 5.0), dtype=F32)


def test_a_value_is_not_forwarded_past_another_store_of_its_buffer():
    body = [
        Store("y", A, exp(read("x", A))),
        Store("y", A + 1, read("x", A)),
        Store("z", A, read("y", A)),
    ]
    made = forward_values(draft(nest([loop(A, 4, "ordered")], *body)))
    assert made.nests[0].body[-1] == body[-1]


def test_what_is_only_computed_for_unread_scratch_is_gone():
    body = [
        Accumulate(("r",), "sum", read("x", A)),
        Accumulate(("q",), "max", read("x", A)),
    ]
    finish = [Store("t", C * 0, Local(F32, "q")), Store("y", C * 0, Local(F32, "r"))]
    made = forward_values(
        draft(
            nest([], *body, reduced=[loop(A, 4)], finish=finish),
            scratch=[Scratch("t", F32, sympy.Integer(1))],
        )
    )
    assert made.nests[0].body == (body[0],) and made.nests[0].finish == (finish[1],)


def test_reads_are_not_shared_across_a_store_of_what_they_read():
    names = iter("abc")
    body = (
        Store("z", A, exp(read("y", A))),
        Store("y", A, Constant(F32, 0.0)),
        Store("z", A + 4, exp(read("y", A))),
    )
    assert share_common(body, lambda: next(names)) == body


def test_shared_parts_of_shared_parts_are_named_first():
    names = iter("abc")
    inner = exp(read("x", A))
    outer = apply("mul", inner, inner)
    made = share_common((Store("y", A, apply("add", outer, outer)),), lambda: next(names))
    a, b = Local(F32, "a"), Local(F32, "b")
    assert made == (
        Let("a", inner),
        Let("b", apply("mul", a, a)),
        Store("y", A, apply("add", b, b)),
    )


def test_loops_are_ordered_by_step_with_the_vector_last():
    made = order_nest(
        nest([loop(A, 4), loop(B, 5, "vector"), loop(C, 6)], Store("y", A + 40 * B + 4 * C, read("x", A))), {}
    )
    assert [item.index for item in made.loops] == [C, A, B]
