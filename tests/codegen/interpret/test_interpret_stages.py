"""Stages mean what their docstrings say: each kind against torch, and what is out of range is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.check import check_stages
from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo, index_symbol
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, Load, apply, compute_dtype
from mixbackend.backends.codegen.ir.stages import (
    AliasOutput,
    Concatenate,
    GraphOutput,
    Loop,
    Map,
    NumberInput,
    Part,
    Reduce,
    Scan,
    Scatter,
    Stage,
    StageGraph,
    StridedInput,
    TensorType,
)
from mixbackend.contracts import IrError

F16, F32, I64, BOOL = torch.float16, torch.float32, torch.int64, torch.bool
I0, I1, I2, I3, V0 = map(index_symbol, ("i0", "i1", "i2", "i3", "v0"))
S0 = sympy.Symbol("s0", integer=True, positive=True)
NAN = float("nan")


def run(
    stage: Stage, given: dict[str, torch.Tensor], result: tuple[Sequence[Any], torch.dtype], **more: Any
) -> torch.Tensor:
    """The one target ``y`` of a stage on given inputs."""
    sizes, dtype = result
    inputs = tuple(
        StridedInput(
            name,
            TensorType(tuple(map(sympy.Integer, item.shape)), item.dtype),
            tuple(map(sympy.Integer, item.stride())),
        )
        for name, item in given.items()
    )
    target = TensorType(tuple(map(sympy.sympify, sizes)), dtype)
    strides = more.get("strides") or torch.empty([int(size) for size in sizes]).stride()
    types = (*((item.name, item.type) for item in inputs), ("y", target))
    output = GraphOutput("y", "y", tuple(map(sympy.sympify, strides)))
    graph = StageGraph(inputs, types, (stage,), (output,))
    if more.get("check", True):
        check_stages(graph)
    (y,) = interpret_stages(graph, list(given.values()))
    return y


def loop(index: sympy.Symbol, size: Any) -> Loop:
    return Loop(index, sympy.sympify(size))


def load(name: str, *index: Any, dtype: torch.dtype = F32, **more: Any) -> Expr:
    return Load(dtype, name, tuple(map(sympy.sympify, index)), **more)


GRID = (loop(I0, 3), loop(I1, 4))
X = load("x", I0, I1)


def test_half_is_widened_rounded_and_read_in_any_strides() -> None:
    x = torch.randn(4, 6).half().t()[::2]
    y = run(Map("y", GRID, apply("exp", X)), {"x": x}, ((3, 4), F16))
    assert torch.equal(y, x.float().exp().half())


def test_index_expressions() -> None:
    x = torch.arange(12.0)
    flat = load("x", 4 * FloorDiv(4 * I0 + I1, sympy.Integer(4)) + Modulo(sympy.Min(I1 + 2, I1 + 6), sympy.Integer(4)))
    assert torch.equal(run(Map("y", GRID, flat), {"x": x}, ((3, 4), F32)), x.reshape(3, 4).roll(-2, 1))


def test_a_masked_load_reads_nothing_where_it_must_not() -> None:
    x = torch.randn(3, 2)
    inside = apply("lt", IndexValue(I64, I1), Constant(I64, 2))
    y = run(Map("y", GRID, load("x", I0, I1, mask=inside, other=7.0)), {"x": x}, ((3, 4), F32))
    assert torch.equal(y, torch.nn.functional.pad(x, (0, 2), value=7.0))
    empty = run(Map("y", GRID, load("x", I0, I1, mask=Constant(BOOL, False))), {"x": x[:0]}, ((3, 4), F32))
    assert torch.equal(empty, torch.zeros(3, 4))


def test_bound_rows() -> None:
    rows, x = torch.tensor([2, 0, 2]), torch.randn(3, 4)
    row = load("rows", I0, dtype=I64)
    y = run(Map("y", GRID, load("x", V0, I1, bindings=((V0, row),))), {"x": x, "rows": rows}, ((3, 4), F32))
    assert torch.equal(y, x[rows])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sum", lambda x: x.sum(1)),
        ("prod", lambda x: x.prod(1)),
        ("max", lambda x: x.amax(1)),
        ("min", lambda x: x.amin(1)),
        ("argmax", lambda x: x.argmax(1)),
        ("argmin", lambda x: x.argmin(1)),
    ],
)
@pytest.mark.parametrize("values", [[1.0, 3.0, 3.0, -2.0], [1.0, NAN, 5.0, NAN], [-0.0, 0.0, 0.0, -0.0]])
def test_reductions(kind: Any, expected: Any, values: list[float]) -> None:
    x = torch.tensor([values, values[::-1], [0.5] * 4])
    dtype = I64 if kind.startswith("arg") else F32
    y = run(Reduce(("y",), GRID[:1], GRID[1:], kind, X), {"x": x}, ((3,), dtype))
    torch.testing.assert_close(y, expected(x), rtol=0, atol=0, equal_nan=True)


def test_integers_wrap_in_their_own_type() -> None:
    x = torch.full((3, 4), 100, dtype=torch.int8)
    value = load("x", I0, I1, dtype=torch.int8)
    assert run(Reduce(("y",), GRID[:1], GRID[1:], "sum", value), {"x": x}, ((3,), torch.int8)).tolist() == [-112] * 3


@pytest.mark.parametrize(("place", "expected"), [(0, lambda x: x.mean(1)), (1, lambda x: x.var(1, correction=0) * 4)])
def test_welford(place: int, expected: Any) -> None:
    x = torch.randn(3, 4)
    targets = ("y", None) if place == 0 else (None, "y")
    y = run(Reduce(targets, GRID[:1], GRID[1:], "welford", X), {"x": x}, ((3,), F32))
    torch.testing.assert_close(y, expected(x))


@pytest.mark.parametrize(
    ("kind", "value", "dtype"),
    [("sum", 0.0, F32), ("prod", 1.0, F32), ("any", False, BOOL), ("all", True, BOOL)],
)
def test_folds_of_nothing(kind: Any, value: Any, dtype: torch.dtype) -> None:
    x = torch.zeros(3, 0, dtype=dtype)
    folded = Reduce(("y",), GRID[:1], (loop(I1, 0),), kind, load("x", I0, I1, dtype=dtype))
    assert run(folded, {"x": x}, ((3,), dtype)).tolist() == [value] * 3


def test_welford_of_nothing_and_extremes_of_nothing() -> None:
    x = torch.zeros(3, 0)
    nothing = (loop(I1, 0),)
    assert run(Reduce(("y", None), GRID[:1], nothing, "welford", X), {"x": x}, ((3,), F32)).isnan().all()
    assert run(Reduce((None, "y"), GRID[:1], nothing, "welford", X), {"x": x}, ((3,), F32)).tolist() == [0.0] * 3
    with pytest.raises(IrError, match="max over nothing"):
        run(Reduce(("y",), GRID[:1], nothing, "max", X), {"x": x}, ((3,), F32))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sum", torch.cumsum),
        ("prod", torch.cumprod),
        ("max", lambda x, d: x.cummax(d).values),
        ("min", lambda x, d: x.cummin(d).values),
        ("logsumexp", torch.logcumsumexp),
    ],
)
def test_scans(kind: Any, expected: Any, axis: int) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(run(Scan("y", GRID, axis, kind, X), {"x": x}, ((3, 4), F32)), expected(x, axis))


def test_parts_count_from_their_own_start() -> None:
    x, z = torch.randn(3, 4), torch.randn(3, 2)
    parts = (Part(sympy.Integer(4), sympy.Integer(0), X), Part(sympy.Integer(2), sympy.Integer(4), load("z", I0, I1)))
    y = run(Concatenate("y", (loop(I0, 3), loop(I1, 6)), 1, parts), {"x": x, "z": z}, ((3, 6), F32))
    assert torch.equal(y, torch.cat([x, z], 1))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("set", [5.0, 4.0, 10.0, 6.0]),
        ("add", [17.0, 14.0, 10.0, 20.0]),
        ("mul", [100.0, 40.0, 10.0, 180.0]),
        ("max", [10.0, 10.0, 10.0, 10.0]),
        ("min", [2.0, 4.0, 10.0, 1.0]),
    ],
)
def test_scatters_are_in_order(mode: Any, expected: list[float]) -> None:
    place, value = torch.tensor([3, 0, 3, 1, 0, 3]), torch.arange(6.0) + 1
    stage = Scatter(
        "y",
        (loop(I0, 4),),
        Constant(F32, 10.0),
        (loop(I2, 6),),
        (V0,),
        load("x", I2),
        mode,
        ((V0, load("p", I2, dtype=I64)),),
    )
    assert run(stage, {"x": value, "p": place}, ((4,), F32)).tolist() == expected


def test_a_masked_scatter() -> None:
    mask = apply("lt", IndexValue(I64, I2), Constant(I64, 3))
    stage = Scatter("y", (loop(I0, 3),), Constant(F32, 0.0), (loop(I2, 6),), (I2,), load("x", I2), "set", (), mask)
    assert run(stage, {"x": torch.arange(6.0)}, ((3,), F32)).tolist() == [0.0, 1.0, 2.0]


def test_strides_of_outputs() -> None:
    x = torch.randn(3, 4)
    y = run(Map("y", GRID, X), {"x": x}, ((3, 4), F32), strides=(1, 3))
    assert y.stride() == (1, 3) and torch.equal(y, x)
    y = run(Map("y", GRID, load("x", I0, 0)), {"x": x}, ((3, 4), F32), strides=(1, 0))
    assert y.stride() == (1, 0) and torch.equal(y, x[:, :1].expand(3, 4))


def test_sizes_numbers_and_aliases_come_from_the_inputs() -> None:
    alpha = sympy.Symbol("n_a", real=True)
    x = StridedInput("x", TensorType((2 * S0,), F32), (sympy.Integer(1),))
    double = Map("y", (loop(I0, 2 * S0),), apply("mul", load("x", I0), IndexValue(F32, alpha)))
    size = Map("z", (), IndexValue(I64, S0))
    graph = StageGraph(
        (x, NumberInput("a", alpha)),
        (("x", x.type), ("y", x.type), ("z", TensorType((), I64))),
        (double, size),
        (
            GraphOutput("y", "y", (sympy.Integer(1),)),
            GraphOutput("z", "z", ()),
            AliasOutput("v", "x", (S0,), (sympy.Integer(2),), sympy.Integer(1)),
        ),
    )
    check_stages(graph)
    given = torch.randn(6)
    y, z, v = interpret_stages(graph, [given, 0.1])
    assert torch.equal(y, given * torch.tensor(0.1)) and int(z) == 3
    assert v.data_ptr() == given[1::2].data_ptr() and torch.equal(v, given[1::2])
    with pytest.raises(IrError, match="a size of x"):
        interpret_stages(graph, [torch.randn(5), 0.1])


BASE = {"x": torch.randn(3, 4), "rows": torch.tensor([0, 5, 1])}
ROW = load("rows", I0, dtype=I64)
WRONG: dict[str, tuple[Stage, str]] = {
    "read": (Map("y", GRID, load("x", I0, I1 + 1)), r"x\[3, 4\] is read at \[0, 4\]"),
    "negative": (Map("y", GRID, load("x", I0 - 1, I1)), r"read at \[-1, 0\]"),
    "bound": (Map("y", GRID, load("x", V0, I1, bindings=((V0, ROW),))), r"read at \[5, 0\]"),
    "mask too wide": (
        Map("y", GRID, load("x", I0, I1 + 1, mask=apply("lt", IndexValue(I64, I1), Constant(I64, 4)))),
        "out of range",
    ),
    "write": (
        Scatter("y", GRID, Constant(F32, 0.0), (loop(I2, 3), loop(I3, 4)), (I2 + 1, I3), load("x", I2, I3), "set"),
        r"is written at \[3, 0\]",
    ),
    "undefined": (Map("y", GRID, load("z", I0, I1)), "z is read before it is defined"),
    "unknown symbol": (Map("y", GRID, load("x", I0, I3)), "i3 has no value"),
    "gap": (Concatenate("y", GRID, 1, (Part(sympy.Integer(3), sympy.Integer(1), X),)), "starts at 1, 0 is filled"),
    "too short": (Concatenate("y", GRID, 1, (Part(sympy.Integer(3), sympy.Integer(0), X),)), "fill 3 of 4"),
    "sizes": (Map("y", (loop(I0, 2), loop(I1, 4)), X), r"computed as \[2, 4\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found_where_it_is(name: str) -> None:
    stage, message = WRONG[name]
    with pytest.raises(IrError, match=message) as caught:
        run(stage, BASE, ((3, 4), F32), check=False)
    assert "y" in str(caught.value) and ("where" in str(caught.value))


def test_types_are_computed_as_stated() -> None:
    assert compute_dtype(F16) == F32
    with pytest.raises(IrError, match="is computed as"):
        run(Map("y", GRID, apply("lt", X, X, dtype=F32)), BASE, ((3, 4), F32), check=False)
