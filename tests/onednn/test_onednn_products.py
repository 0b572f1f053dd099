"""Products of matrices: every layout, odd sizes, biases of all forms, types, large batches."""

from __future__ import annotations

import itertools

import pytest
import torch

from mixbackend.backends.onednn.kernels import element_types

aten = torch.ops.aten


def layouts(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """One matrix of small integers, whose sums are exact, in many layouts."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randint(-4, 5, shape).to(dtype)

    return {
        "dense": random(rows, columns),
        "transposed": random(columns, rows).t(),
        "gaps in rows": random(rows, columns + 3)[:, :columns],
        "gaps in columns": random(columns, rows + 3)[:, :rows].t(),
        "every second": random(2 * rows, 2 * columns)[::2, ::2],
        "equal rows": random(1, columns).expand(rows, columns),
        "equal columns": random(rows, 1).expand(rows, columns),
        "one number": random(1, 1).expand(rows, columns),
        "off the start": random(rows * columns + 1)[1:].view(rows, columns),
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("constants", [(), (1,)], ids=["live", "constant"])
def test_every_pair_of_layouts(bench, constants):
    """One compiled region takes any strides."""
    for rows, terms, columns in itertools.product((1, 4), (1, 7), (1, 3)):
        built = bench.build(aten.mm, torch.randn(rows, terms), torch.randn(terms, columns), constants=constants)
        for left, right in itertools.product(layouts(rows, terms).values(), layouts(terms, columns).values()):
            (result,) = built.check(left, right)
            assert result.is_contiguous()


@pytest.mark.parametrize("constants", [(), (1,)], ids=["live", "constant"])
def test_empty_results(bench, constants):
    for rows, columns in ((0, 4), (3, 0), (0, 0)):
        bench.check(aten.mm, torch.randn(rows, 5), torch.randn(5, columns), constants=constants)


def test_transposes_inside_a_region_move_nothing(bench):
    weight = torch.randn(6, 5)
    for turn in (aten.t, lambda w: aten.transpose(w, 0, 1), lambda w: aten.permute(w, [1, 0])):
        built = bench.check(lambda x, w, turn=turn: aten.mm(x, turn(w)), torch.randn(4, 5), weight)
        assert ".t()" not in built.compiled.source and "permute" not in built.compiled.source
    untouched = bench.check(lambda x, w: aten.mm(x, aten.permute(w, [0, 1])), torch.randn(4, 6), weight)
    assert ".t()" in untouched.compiled.source


def test_a_sum_of_nothing_is_refused(bench):
    (refusal,) = bench.refusals(aten.mm, torch.randn(3, 0), torch.randn(0, 4))
    assert refusal.code == "layout" and "empty" in refusal.detail


def test_matrices_that_overlap_themselves_are_refused(bench):
    windows, plain = torch.randn(20).as_strided((4, 5), (2, 1)), torch.ones(5, 4)
    for first, second in ((windows, plain), (plain, windows)):
        assert [item.code for item in bench.refusals(aten.mm, first, second)] == ["layout"]


@pytest.mark.parametrize("constant", [False, True], ids=["live", "constant"])
def test_biases(bench, constant):
    x, w = torch.randn(4, 5), torch.randn(5, 3)
    forms = [
        torch.randn(3),
        torch.randn(6)[::2],
        torch.randn(1).expand(3),
        torch.randn(1, 3),
        torch.randn(1, 6)[:, ::2],
        torch.randn(4, 3),
        torch.randn(3, 4).t(),
        torch.randn(4, 6)[:, ::2],
        torch.randn(1, 3).expand(4, 3),
        torch.randn(4, 1).expand(4, 3),
    ]
    for bias in forms:
        bench.check(lambda b, x, w: aten.addmm(b, x, w), bias, x, w, constants=(0, 2) if constant else ())


def test_biases_that_are_broadcast_otherwise_are_refused(bench):
    x, w = torch.randn(4, 5), torch.randn(5, 3)
    for bias in (torch.randn(1), torch.randn(4, 1), torch.randn(())):
        assert [item.code for item in bench.refusals(aten.addmm, bias, x, w)] == ["layout"]


def test_factors_are_refused(bench):
    function = lambda b, x, w: aten.addmm(b, x, w, beta=2)  # noqa: E731
    (refusal,) = bench.refusals(function, torch.randn(3), torch.randn(4, 5), torch.randn(5, 3))
    assert refusal.code == "argument" and "beta" in refusal.detail


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_where_the_processor_has_it(bench, dtype):
    x, w, b = (torch.randn(*shape).to(dtype) for shape in ((5, 16), (16, 8), (8,)))
    function = lambda x, w, b: aten.addmm(b, x, w)  # noqa: E731
    if dtype in element_types():
        bench.check(function, x, w, b, constants=(1, 2))
    else:
        assert [item.code for item in bench.refusals(function, x, w, b)] == ["dtype"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.complex64], ids=str)
def test_other_types_are_refused(bench, dtype):
    value = torch.ones(3, 3, dtype=dtype)
    assert [item.code for item in bench.refusals(aten.mm, value, value)] == ["dtype"]


def test_batches_of_large_matrices_run_one_by_one(bench):
    left, right = torch.randn(3, 256, 256), torch.randn(3, 256, 256).transpose(1, 2)
    built = bench.check(aten.bmm, left, right)
    assert "batched" in built.compiled.source
    (refusal,) = bench.refusals(aten.bmm, left[:, :8], right)
    assert refusal.code == "declined"


def test_nothing_is_rounded_more_than_torch_asks_for(bench):
    x, w = torch.randn(64, 512), torch.randn(512, 64)
    built = bench.build(aten.mm, x, w)
    exact = x.double() @ w.double()
    (result,) = built.compiled.run([x, w])
    assert (result - exact).abs().max() < 1e-3
    before = bench.backend.fingerprint()
    torch.set_float32_matmul_precision("medium")
    try:
        assert bench.backend.fingerprint() != before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_zero_rows_of_a_packed_weight(bench):
    built = bench.build(aten.mm, torch.randn(4, 5), torch.randn(5, 3), constants=(1,))
    weight = torch.randn(5, 3)
    run = built.bind([torch.randn(4, 5), weight]).run
    for rows in (0, 1, 3, 4, 100):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(run([x, None])[0], x @ weight)
