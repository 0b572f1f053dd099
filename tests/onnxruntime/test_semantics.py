"""Where runtimes like to differ from torch: NaN, infinities, masked rows, promotion, ranges of integers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mixbackend.contracts import Supported
from mixbackend.graph.trace import trace_graph

aten = torch.ops.aten
_NAN, _INF = float("nan"), float("inf")
_LEFT = torch.tensor([_NAN, _INF, -_INF, 0.0, -0.0, 1.0, -2.5, 0.5, 1.5, 2.5, 3e38, 1e-30] * 2)
_RIGHT = torch.tensor([1.0, _NAN, _INF, 0.0, 2.0, -_INF, 3.0, -0.5, 0.0, _NAN, -3e38, 0.0] * 2)

_ONE = (
    "relu exp log sqrt reciprocal tanh sin erf sigmoid sign rsqrt floor ceil round trunc isnan isinf silu "
    "hardsigmoid softplus leaky_relu elu abs neg hardtanh nan_to_num logical_not amax amin max min any all argmax "
    "argmin"
)
_TWO = "add sub mul div maximum minimum pow eq ne lt ge gt le fmod remainder floor_divide logical_and logical_xor"


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", _ONE.split())
def test_extremes_of_one_operand(workbench, name):
    operator = getattr(aten, name)
    built = workbench.build(lambda value: operator(value), [_LEFT])
    torch.testing.assert_close(built(_LEFT)[0], operator(_LEFT), rtol=1e-5, atol=1e-6, equal_nan=True)


_EXTREMES = {
    "amax": lambda x: (aten.amax(x, [1]), aten.amax(x, [0, 2], True), aten.amax(x)),
    "amin": lambda x: (aten.amin(x, [1]), aten.amin(x, [0, 2], True), aten.amin(x)),
    "whole": lambda x: (aten.max(x), aten.min(x)),
    "max": lambda x: (aten.max(x), aten.argmax(x), aten.argmax(x, 2), aten.argmax(x, 0, True)),
    "min": lambda x: (aten.min(x), aten.argmin(x), aten.argmin(x, 2), aten.argmin(x, 0, True)),
    "max.dim": lambda x: (*aten.max.dim(x, 2), *aten.max.dim(x, 0, True)),
    "min.dim": lambda x: (*aten.min.dim(x, 2), *aten.min.dim(x, 0, True)),
    "values": lambda x: (aten.max.dim(x, 1)[0], aten.min.dim(x, 1)[1]),
    "norms": lambda x: (aten.linalg_vector_norm(x, _INF, [1]), aten.linalg_vector_norm(x, -_INF, [1])),
}
_WITH_PLACES = {"max", "min", "max.dim", "min.dim", "values"}
"""These ask for places too, which are left to others in halves."""


@pytest.mark.sampled(13)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", _EXTREMES)
def test_a_nan_anywhere_is_the_extreme(workbench, name, dtype):
    values = torch.arange(3 * 9 * 8, dtype=torch.float32).remainder(61).reshape(3, 9, 8)
    for place in (1, 7, 8 * 9 - 1, 8 * 9 + 3, 3 * 9 * 8 - 2):
        values.view(-1)[place] = _NAN
    values[2, 3], values[2, 4, 4:6] = _INF, -_INF
    values = values.to(dtype)
    if dtype in (torch.float16, torch.bfloat16) and name in _WITH_PLACES:
        assert {item.code for item in workbench.refusals(_EXTREMES[name], [values])} == {"dtype"}
        return
    built = workbench.build(_EXTREMES[name], [values])
    for mine, eager in zip(built(values), _EXTREMES[name](values), strict=True):
        assert torch.equal(mine.nan_to_num(7e3, 8e3, -8e3), eager.nan_to_num(7e3, 8e3, -8e3))


def test_hardswish_of_extremes(workbench):
    """Torch multiplies before it divides, so its own result overflows early: the standard is float64."""
    built = workbench.build(lambda value: aten.hardswish(value), [_LEFT])
    expected = aten.hardswish(_LEFT.double()).float()
    torch.testing.assert_close(built(_LEFT)[0], expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("activation", ["relu", "hardtanh", "relu6", "hardswish", "hardsigmoid"])
@pytest.mark.parametrize("groups", [1, 16])
def test_activations_within_convolutions_keep_nan(workbench, activation, groups):
    operator = getattr(aten, activation)
    image = torch.randn(1, 16, 6, 6)
    image[0, 3, 2, 2] = _NAN
    weight = torch.randn(16, 16 // groups, 3, 3)
    workbench.check(lambda x, w: operator(torch.conv2d(x, w, None, 1, 1, 1, groups)), image, weight)


@pytest.mark.parametrize("name", _TWO.split())
def test_extremes_of_two_operands(workbench, name):
    operator = getattr(aten, name)
    built = workbench.build(lambda left, right: operator(left, right), [_LEFT, _RIGHT])
    torch.testing.assert_close(built(_LEFT, _RIGHT)[0], operator(_LEFT, _RIGHT), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_integers_wrap(workbench):
    left = torch.tensor([127, -128, 100], dtype=torch.int8)
    workbench.check(lambda a, b: (a + b, a * b, -a, a * 3), left, left)
    wide = torch.tensor([[2**62, -(2**63), 7], [1, 2, 3]])
    workbench.check(lambda a: (a + a, a * 5, a.sum(), a.sum(1), a.sum(0, keepdim=True)), wide)


@pytest.mark.parametrize("target", [torch.int64, torch.int32, torch.bool, torch.uint8, torch.float16])
def test_casts_truncate(workbench, target):
    value = torch.tensor([0.0, 0.4, 0.6, 1.5, 2.5, 7.9, 100.2])
    workbench.check(lambda x: x.to(target), value)


def test_large_integers_survive(workbench):
    value = torch.tensor([2**53 + 1, 2**40 + 3, -(2**53) - 1])
    workbench.check(lambda x: (x.clone() + 0, x[1], torch.stack([x, x]), x.cumsum(0), x.max()), value)


@pytest.mark.parametrize(
    "function",
    [
        lambda i, f: i + f,
        lambda i, f: i / 2,
        lambda i, f: i * 1.5,
        lambda i, f: torch.where(i > 2, i, f),
        lambda i, f: i.float().mean() + i,
        lambda i, f: (i > 1) & (f > 0),
        lambda i, f: (i > 1).sum(),
        lambda i, f: torch.cat([i.reshape(-1), f.reshape(-1)]),
        lambda i, f: i == f,
        lambda i, f: f.half() + i,
        lambda i, f: f.half() * torch.tensor(2.0, dtype=torch.float64),
        lambda i, f: (i > 1) + (f > 0),
        lambda i, f: f.bfloat16() + f.half(),
        lambda i, f: i**2,
        lambda i, f: 2.0**i,
    ],
)
def test_promotion(workbench, function):
    integers = torch.arange(6).reshape(2, 3)
    floats = torch.linspace(-1, 4, 6).reshape(2, 3)
    workbench.check(function, integers, floats)


def test_attention_rows_without_a_key_are_zero(workbench):
    query, key, value = (torch.randn(1, 2, 4, 8) for _ in range(3))
    mask = torch.zeros(1, 1, 4, 4)
    mask[..., 1, :] = -_INF

    def attend(q, k, v, m):
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=m)[0]

    workbench.check(attend, query, key, value, mask)


def test_repeated_indices_add_without_a_race(workbench):
    """Many updates of one row, on several threads, always give the same sum."""
    indices, grad = torch.zeros(4096, dtype=torch.int64), torch.ones(4096, 16)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        built = workbench.build(lambda g, i: aten.embedding_dense_backward(g, i, 5, -1, False), [grad, indices])
        for _ in range(5):
            assert built(grad, indices)[0][0].eq(4096.0).all()
    finally:
        torch.set_num_threads(before)


def test_attention_whose_statistics_are_announced_wrongly_is_refused(workbench):
    """Torch 2.11 announces float32 for a float64 call and gives float64."""
    query = torch.randn(1, 2, 5, 4, dtype=torch.float64)
    _, graph = trace_graph(lambda q: aten._scaled_dot_product_flash_attention_for_cpu(q, q, q), [query])
    view = graph.view(graph.placed_nodes[0].name)
    verdicts = []
    for dtype in (torch.float32, torch.float64):
        result, statistics = view.outputs
        node = replace(view.node, outputs=(result, replace(statistics, dtype=dtype)))
        verdicts.append(workbench.backend.judge(replace(view, node=node)))
    assert verdicts[0].code == "dtype"
    assert verdicts[1] == Supported()


def test_floor_division_by_a_tensor_of_integers_is_refused(workbench):
    """A zero would stop the process where torch raises."""
    left, right = torch.arange(6), torch.arange(6)
    for name in ("floor_divide", "remainder", "fmod"):
        operator = getattr(aten, name)
        refusals = workbench.refusals(lambda a, b, operator=operator: operator(a, b), [left, right])
        assert [refusal.code for refusal in refusals] == ["argument"], name
    assert workbench.refusals(lambda a: a // 0, [left])[0].code == "argument"


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: x.kthvalue(2)[0], "unknown-op"),
        (lambda x: torch.rand_like(x), "random"),
        (lambda x: torch.nn.functional.dropout(x, 0.5), "random"),
        (lambda x: x.to(torch.complex64), "dtype"),
        (lambda x: x[x > 0], "data-dependent"),
        (lambda x: x.sort()[0], "unknown-op"),
        (lambda x: x[:, :0] + 1, "declined"),
        (lambda x: torch.nn.functional.avg_pool2d(x[None, None], 3, 3, ceil_mode=True), "argument"),
        (lambda x: x.byte().clamp(min=-1), "argument"),
        (lambda x: x.byte().clamp_min(-1), "argument"),
        (lambda x: aten.div.Tensor_mode(x.long(), x.long(), rounding_mode="floor"), "argument"),
    ],
)
def test_refusals_say_why(workbench, function, code):
    refusals = workbench.refusals(function, [torch.randn(4, 4)])
    assert code in {refusal.code for refusal in refusals}
    assert all(refusal.detail for refusal in refusals)


@pytest.mark.parametrize("name", ["mv", "addmv", "dot"])
def test_products_of_turned_matrices_and_vectors(workbench, name):
    """The runtime fuses a transposition into a product, and then takes a vector for a matrix."""
    matrix, vector, addend = torch.arange(12.0).reshape(3, 4) % 5, torch.tensor([1.0, -2.0, 4.0]), torch.ones(4)
    functions = {
        "mv": lambda m, v, _: aten.mv(aten.t(m), v),
        "addmv": lambda m, v, a: aten.addmv(a, aten.t(m), v),
        "dot": lambda m, v, a: aten.dot(aten.mv(aten.t(m), v), a),
    }
    built = workbench.build(functions[name], [matrix, vector, addend])
    assert torch.equal(built(matrix, vector, addend)[0], functions[name](matrix, vector, addend))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_of_halves_are_left_to_others(workbench, name, dtype):
    """The runtime drops a cast to halves before a kernel of float32, so that two equal halves may differ."""
    value = torch.tensor(-1.2345)

    def compared(value):
        size = value.to(dtype).abs()
        return getattr(aten, name)(size, aten.amax(size, [0]))

    (refusal,) = workbench.refusals(compared, [value])
    assert refusal.code == "dtype"


_STEPS = {
    "argmax": lambda x: aten.argmax(x, 1),
    "argmin": lambda x: aten.argmin(x),
    "max.dim": lambda x: aten.max.dim(x, 1),
    "min.dim": lambda x: aten.min.dim(x, 1),
    "max_pool2d": lambda x: aten.max_pool2d_with_indices(x[None, None], [2, 2]),
    "isinf": lambda x: aten.isinf(x),
    "logical_not": lambda x: aten.logical_not(x),
    "any": lambda x: aten.any(x),
    "to_int": lambda x: aten._to_copy(x, dtype=torch.int64),
    "floor": lambda x: aten.floor(x),
    "ceil": lambda x: aten.ceil(x),
    "round": lambda x: aten.round(x),
    "trunc": lambda x: aten.trunc(x),
    "sign": lambda x: aten.sign(x),
    "floor_divide": lambda x: aten.floor_divide(x, x),
    "div_floor": lambda x: aten.div.Tensor_mode(x, x, rounding_mode="floor"),
    "fmod": lambda x: aten.fmod.Tensor(x, x),
    "remainder": lambda x: aten.remainder.Scalar(x, 0.3),
    "threshold": lambda x: aten.threshold(x, 0.3, 7.0),
    "threshold_backward": lambda x: aten.threshold_backward(x, x, 0.3),
    "hardtanh_backward": lambda x: aten.hardtanh_backward(x, x, -1.0, 1.0),
    "leaky_relu_backward": lambda x: aten.leaky_relu_backward(x, x, 0.1, False),
    "nan_to_num": lambda x: aten.nan_to_num(x),
}


@pytest.mark.sampled(15)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", _STEPS)
def test_steps_over_halves_are_left_to_others(workbench, name, dtype):
    """A rounding that the runtime drops moves a value over a step: indices, masks and whole numbers differ."""
    (refusal,) = workbench.refusals(lambda value: _STEPS[name](value.to(dtype)), [torch.randn(4, 6)])
    assert refusal.code == "dtype"
    assert not workbench.refusals(_STEPS[name], [torch.randn(4, 6)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_what_ignores_values_or_has_no_steps_is_taken_in_halves(workbench, dtype):
    def function(value):
        size = value.to(dtype).abs()
        return aten.zeros_like(size, dtype=torch.int64), aten.amax(size, [1]), aten.clamp_min(size, 0.5), size.float()

    assert not workbench.refusals(function, [torch.randn(4, 6)])
