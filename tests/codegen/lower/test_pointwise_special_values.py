"""Pointwise rules at NaN, infinities, signed zeros, bounds and extremes: the same as eager, element by element."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.contracts import Supported
from mixbackend.execute.verify import reference_result
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
_NAN, _INF = float("nan"), float("inf")
_VALUES = [_NAN, _INF, -_INF, 0.0, -0.0, 1e-7, -1e-7, 0.1, -0.1, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, -3.0, 6.0]
_VALUES += [-6.0, 20.0, -20.0, 21.0, 87.0, -87.0, 100.0, -100.0, 6e4, -6e4, 1e30, -1e30]
_INTEGERS = [0, 1, -1, 2, -2, 3, 7, -7, 63, 100, -100]


def _of_torch(names):
    return {name: getattr(torch, name) for name in names.split()}


UNARY = {
    **_of_torch(
        "neg abs sign sgn reciprocal sqrt rsqrt square exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos"
    ),
    **_of_torch(
        "atan sinh cosh asinh acosh atanh tanh erf erfc sigmoid floor ceil trunc round frac isnan isinf isfinite"
    ),
    **_of_torch("isposinf isneginf signbit relu logical_not logit sinc deg2rad rad2deg angle nan_to_num"),
    "logit_eps": lambda x: torch.logit(x, 0.1),
    "nan_to_num_given": lambda x: torch.nan_to_num(x, 1.0, 2.0, -3.0),
    "entr": torch.special.entr,
    **{f"pow_{power}": (lambda x, p=power: x**p) for power in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 1.7, -3, 5)},
    "pow_base": lambda x: 2.0**x,
    "add_scalar": lambda x: x + 0.1,
    "rsub": lambda x: torch.rsub(x, 1.3, alpha=2),
    "divide_number": lambda x: x / 3.0,
    "number_divided": lambda x: 3.0 / x,
    "clamp": lambda x: x.clamp(-0.1, 2.5),
    "clamp_crossed": lambda x: x.clamp(2.0, 1.0),
    "clamp_nan": lambda x: x.clamp(min=_NAN),
    "compare_number": lambda x: (x == 0.1, x != 0.1, x < 0.1, x <= 0.1, x > 0.1, x >= 0.1),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, -_INF),
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.1, 2.5),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.3),
    "celu": lambda x: F.celu(x, 1.3),
    "selu": F.selu,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": lambda x: F.softplus(x, 2.0, 12.0),
    "softshrink": lambda x: F.softshrink(x, 0.5),
    "hardshrink": lambda x: F.hardshrink(x, 0.5),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "logsigmoid": F.logsigmoid,
}
BINARY = {
    **_of_torch(
        "add sub mul div minimum maximum fmin fmax atan2 hypot copysign logaddexp logaddexp2 xlogy remainder fmod"
    ),
    **_of_torch("floor_divide pow eq ne lt le gt ge heaviside logical_and logical_or logical_xor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp_late": lambda x, y: torch.lerp(x, y, 0.7),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.3),
    "where": lambda x, y: torch.where(x > y, x, y),
    "clamp_tensor": lambda x, y: torch.clamp(x, y, y),
    "xlog1py": torch.special.xlog1py,
    "prelu": lambda x, y: aten._prelu_kernel(x, y),
}
GRADIENTS = {
    "sigmoid": lambda g, x: aten.sigmoid_backward(g, x),
    "tanh": lambda g, x: aten.tanh_backward(g, x),
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0.1),
    "silu": lambda g, x: aten.silu_backward(g, x),
    "hardswish": lambda g, x: aten.hardswish_backward(g, x),
    "hardsigmoid": lambda g, x: aten.hardsigmoid_backward(g, x),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -0.1, 2.5),
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.5),
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.5),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 2.0, 12.0),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.2, False),
    "elu": lambda g, x: aten.elu_backward(g, 1.3, 1.1, 0.9, False, x),
    "elu_result": lambda g, x: aten.elu_backward(g, 1.3, 1.1, 0.9, True, x),
    "gelu": lambda g, x: aten.gelu_backward(g, x),
    "gelu_tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "logit": lambda g, x: aten.logit_backward(g, x),
    "logit_eps": lambda g, x: aten.logit_backward(g, x, 0.1),
    "mish": lambda g, x: aten.mish_backward(g, x),
    "dropout": lambda g, x: aten.native_dropout_backward(g, x > 0.5, 1.25),
    "prelu": lambda g, x: aten._prelu_kernel_backward(g, x, g),
    "logsigmoid": lambda g, x: aten.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
}
INTEGER = {
    **{name: BINARY[name] for name in ("add sub mul div minimum maximum fmin fmax atan2 copysign eq lt ge".split())},
    **{name: BINARY[name] for name in ("logical_and heaviside xlogy").split()},
    "bitwise": lambda x, y: (x & y, x | y, x ^ y, ~x),
    "shifts": lambda x, y: (x << (y & 7), x >> (y & 7)),
    "divisions": lambda x, y: (x // (y | 1), torch.div(x, y | 1, rounding_mode="trunc")),
    "remainders": lambda x, y: (torch.remainder(x, y | 1), torch.fmod(x, y | 1)),
    "powers": lambda x, y: (x**2, x**3, x**5, x ** (y & 3)),
    "numbers": lambda x, y: (x + 3, x * 2.5, x / 3, x - 1.5, x > 1.5, x == 2, x.clamp(1, 5), x.clamp(0.5, 5.0)),
    "signs": lambda x, y: (-x, x.abs(), x.sign(), x.signbit(), x.isnan(), x.isfinite(), x.isinf()),
    "functions": lambda x, y: (x.exp(), x.sigmoid(), x.floor(), x.round(), x.trunc(), x.relu(), x.rsqrt()),
    "filled": lambda x, y: (x.masked_fill(y > 1, 5), torch.where(y > 1, x, 2.5)),
}


def _wrong(functions, *inputs):
    """What differs, by name; all functions are traced as one region."""
    names = []

    def every(*tensors):
        results = []
        for name, function in functions.items():
            found = function(*tensors)
            found = found if isinstance(found, tuple) else (found,)
            names.extend([name] * len(found))
            results.extend(found)
        return results

    region = trace_region(every, inputs)
    for view in region.views:
        assert judge_op(view) == Supported(), view.node
    results, expected = interpret_stages(lower_region(region), inputs), region.graph_module(*inputs)
    exact = reference_result(region, inputs, expected)
    return [
        f"{name}: {found}"
        for name, *values in zip(names, results, expected, exact, strict=True)
        if (found := _differences(*values))
    ]


def _differences(result, eager, exact):
    """Elements that are neither eager's nor those of a float64 run, and farther from the latter than eager's."""
    if (result.dtype, result.shape) != (eager.dtype, eager.shape):
        return f"{result.dtype}{list(result.shape)}"
    precision = {"rtol": 0.0, "atol": 0.0}
    if eager.is_floating_point():
        limits = torch.finfo(eager.dtype)
        precision = {"rtol": 16 * limits.eps, "atol": limits.eps / 4}
    close = torch.zeros(eager.shape, dtype=torch.bool)
    result, eager, exact = result.double(), eager.double(), exact.double()
    for expected in (eager, exact):
        close |= torch.isclose(result, expected, equal_nan=True, **precision)
    close |= (result - exact).abs() <= 3.0 * (eager - exact).abs()
    places = (~close).nonzero().flatten().tolist()
    return ", ".join(f"[{place}] {result[place]} not {eager[place]} or {exact[place]}" for place in places[:5])


def _special(dtype):
    limit = torch.finfo(dtype).max
    finite = [value if abs(value) == _INF else max(min(value, limit), -limit) for value in _VALUES]
    # Often enough for eager's vectorised loops, which treat some NaNs unlike its scalar ones.
    return torch.tensor(finite * 32, dtype=dtype)


def _pairs(values):
    return values.repeat(len(values)), values.repeat_interleave(len(values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_functions_of_one_tensor(dtype):
    assert not _wrong(UNARY, _special(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_functions_of_two_tensors(dtype):
    assert not _wrong(BINARY, *_pairs(_special(dtype)[: len(_VALUES)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gradients(dtype):
    values = _special(dtype)
    incoming = torch.linspace(-2.0, 2.0, len(values), dtype=torch.float32).to(dtype)
    assert not _wrong(GRADIENTS, incoming, values)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.int16], ids=str)
def test_integers(dtype):
    assert not _wrong(INTEGER, *_pairs(torch.tensor(_INTEGERS).to(dtype)))


OVERLOADS = {
    "add_number": lambda x, i: aten.add.Scalar(x, 0.3, 2),
    "sub_number": lambda x, i: aten.sub.Scalar(x, 0.3, 2),
    "mul_number": lambda x, i: aten.mul.Scalar(x, 0.3),
    "div_number": lambda x, i: aten.div.Scalar(x, 0.3),
    "div_number_mode": lambda x, i: (aten.div.Scalar_mode(x, 0.3, rounding_mode="floor"), torch.div(x, 2.0)),
    "div_no_mode": lambda x, i: aten.div.Tensor_mode(x, i, rounding_mode=None),
    "floor_divide_number": lambda x, i: aten.floor_divide.Scalar(i, 3),
    "remainders": lambda x, i: (torch.fmod(x, 0.7), torch.remainder(x, 0.7), torch.remainder(5, i.abs() + 1)),
    "copysign_number": lambda x, i: torch.copysign(x, -1.0),
    "lerp_tensor": lambda x, i: torch.lerp(x, x * 2, x.sigmoid()),
    "xlog1py_numbers": lambda x, i: (torch.special.xlog1py(x, 2.0), torch.special.xlog1py(2.0, x)),
    "xlogy_numbers": lambda x, i: (torch.xlogy(x, 2.0), torch.xlogy(2.0, x)),
    "limits": lambda x, i: (
        x.clamp_max(1.0),
        x.clamp_min(0.5),
        x.clamp_max(x.sin()),
        x.clamp_min(x.sin()),
        x.clamp(max=i),
    ),
    "bits": lambda x, i: (
        i & 6,
        i | 6,
        i ^ 6,
        aten.bitwise_and.Scalar_Tensor(6, i),
        aten.bitwise_or.Scalar_Tensor(6, i),
    ),
    "more_bits": lambda x, i: aten.bitwise_xor.Scalar_Tensor(6, i),
    "shifts": lambda x, i: (i << 2, i >> 1, torch.bitwise_left_shift(i, 2), torch.bitwise_right_shift(2, i.abs())),
    "shifts_of_tensors": lambda x, i: (i << i.abs(), torch.bitwise_right_shift(i, i.abs()), 1 << i.abs()),
    "bools": lambda x, i: (
        (i > 0) + (i > 1),
        (i > 0) * (i > 1),
        (i > 0) & (i > 1),
        (i > 0) ^ (i > 1),
        (i > 0) | (i > 1),
    ),
    "fills": lambda x, i: (x.masked_fill(i > 0, x[0]), i.masked_fill(i > 0, 7), torch.where(i > 0, x[0], x)),
    "mixed": lambda x, i: (
        x + i,
        x * (i > 0),
        i / 2,
        i * 2.5,
        i == 1.5,
        torch.where(i > 0, i, 1.5),
        torch.maximum(x, x[1]),
    ),
    "aliases": lambda x, i: (aten.alias(x) + 1, aten.lift_fresh_copy(x) + 1, x.detach() * 2),
    "tests_of_integers": lambda x, i: (i.isnan(), i.isinf(), i.signbit(), (i > 0).signbit(), i.floor(), i.nan_to_num()),
    "glu": lambda x, i: torch.nn.functional.glu(x[:6].reshape(3, 2)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_overloads(dtype):
    assert not _wrong(OVERLOADS, torch.linspace(-3.0, 3.0, 9).to(dtype), torch.arange(-4, 5))
