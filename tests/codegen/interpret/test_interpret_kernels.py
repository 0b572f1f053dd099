"""Kernels mean what their docstring says, and what depends on an open order is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sympy
import torch

from mixbackend.backends.codegen.interpret.kernels import interpret_kernel
from mixbackend.backends.codegen.ir.indices import FloorDiv, index_symbol
from mixbackend.backends.codegen.ir.kernel import (
    Accumulate,
    BufferParameter,
    Carry,
    Kernel,
    KernelLoop,
    Let,
    Nest,
    Scratch,
    Store,
)
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, Local, Read, apply
from mixbackend.contracts import IrError

F32, I64 = torch.float32, torch.int64
I0, I1, R0, R1, V0 = map(index_symbol, ("i0", "i1", "i2", "i3", "v0"))
P0 = index_symbol("p0")


def kernel(
    nests: Sequence[Nest],
    buffers: dict[str, tuple[torch.dtype, str]],
    outer: Sequence[KernelLoop] = (),
    scratch: Sequence[Scratch] = (),
    parameters: Sequence[sympy.Symbol] = (),
    numbers: Sequence[sympy.Symbol] = (),
) -> Kernel:
    declared = tuple(BufferParameter(name, dtype, access) for name, (dtype, access) in buffers.items())  # type: ignore[arg-type]
    return Kernel(
        tuple(parameters), tuple(numbers), declared, tuple(scratch), tuple(outer), tuple(nests), sympy.Integer(1)
    )


def loop(index: sympy.Symbol, extent: Any, mode: Any = "serial") -> KernelLoop:
    return KernelLoop(index, sympy.sympify(extent), mode)


def read(buffer: str, offset: Any, dtype: torch.dtype = F32, **more: Any) -> Expr:
    return Read(dtype, buffer, sympy.sympify(offset), **more)


def store(buffer: str, offset: Any, value: Expr, **more: Any) -> Store:
    return Store(buffer, sympy.sympify(offset), value, **more)


def nest(
    *loops: KernelLoop, body: Sequence[Any], reduced: Sequence[KernelLoop] = (), finish: Sequence[Any] = ()
) -> Nest:
    return Nest(tuple(loops), tuple(reduced), tuple(body), tuple(finish))


IN_OUT = {"b0": (F32, "read"), "b1": (F32, "write")}


def test_a_softmax_of_three_nests_over_scratch() -> None:
    x, y = torch.randn(5 * 7), torch.empty(5 * 7)
    row = read("b0", 7 * I0 + R0)
    softmax = kernel(
        [
            nest(
                reduced=[loop(R0, 7)],
                body=[Accumulate(("m",), "max", row)],
                finish=[store("s0", 0, Local(F32, "m"))],
            ),
            nest(
                reduced=[loop(R0, 7, "vector")],
                body=[
                    Let("e", apply("exp", apply("sub", row, read("s0", 0)))),
                    store("s1", R0, Local(F32, "e")),
                    Accumulate(("a",), "sum", Local(F32, "e")),
                ],
                finish=[store("s0", 1, Local(F32, "a"))],
            ),
            nest(loop(I1, 7, "vector"), body=[store("b1", 7 * I0 + I1, apply("div", read("s1", I1), read("s0", 1)))]),
        ],
        IN_OUT,
        outer=[loop(I0, 5, "parallel")],
        scratch=[Scratch("s0", F32, sympy.Integer(2)), Scratch("s1", F32, sympy.Integer(7))],
    )
    interpret_kernel(softmax, {"b0": x, "b1": y}, {}, {})
    torch.testing.assert_close(y.reshape(5, 7), x.reshape(5, 7).softmax(-1))


@pytest.mark.parametrize("size", [0, 1, 8, 13])
def test_a_last_tile_is_smaller(size: int) -> None:
    x, y = torch.randn(size), torch.empty(size)
    tiled = kernel(
        [
            nest(
                loop(I1, sympy.Min(8, P0 - 8 * I0), "vector"),
                body=[store("b1", 8 * I0 + I1, apply("neg", read("b0", 8 * I0 + I1)))],
            )
        ],
        IN_OUT,
        outer=[loop(I0, FloorDiv(P0 + 7, sympy.Integer(8)), "parallel")],
        parameters=[P0],
    )
    interpret_kernel(tiled, {"b0": x, "b1": y}, {P0: size}, {})
    assert torch.equal(y, -x)


def test_a_reduced_extent_depends_on_the_point() -> None:
    x, y = torch.randn(6, 6), torch.empty(6)
    triangle = kernel(
        [
            nest(
                loop(I1, 6),
                reduced=[loop(R0, I1 + 1)],
                body=[Accumulate(("a",), "sum", read("b0", 6 * I1 + R0))],
                finish=[store("b1", I1, Local(F32, "a"))],
            )
        ],
        IN_OUT,
    )
    interpret_kernel(triangle, {"b0": x.flatten(), "b1": y}, {}, {})
    torch.testing.assert_close(y, x.tril().sum(1))


def test_positions_are_row_major_over_reduced_and_a_nan_is_extreme() -> None:
    x = torch.tensor([1.0, 5.0, 5.0, 2.0, float("nan"), 9.0, float("nan"), 0.0])
    y = torch.empty(2, dtype=I64)
    argmax = kernel(
        [
            nest(
                loop(I1, 2),
                reduced=[loop(R0, 2), loop(R1, 2)],
                body=[Accumulate(("a",), "argmax", read("b0", 4 * I1 + 2 * R0 + R1))],
                finish=[store("b1", I1, Local(I64, "a"))],
            )
        ],
        {"b0": (F32, "read"), "b1": (I64, "write")},
    )
    interpret_kernel(argmax, {"b0": x, "b1": y}, {}, {})
    assert y.tolist() == [1, 0]


def test_an_ordered_loop_carries_and_lanes_stay_apart() -> None:
    x, y = torch.randn(4, 5), torch.empty(4, 5)
    scan = kernel(
        [
            nest(
                loop(I1, 5, "vector"),
                loop(I0, 4, "ordered"),
                body=[Carry("c", "sum", read("b0", 5 * I0 + I1)), store("b1", 5 * I0 + I1, Local(F32, "c"))],
            )
        ],
        IN_OUT,
    )
    interpret_kernel(scan, {"b0": x.flatten(), "b1": y.view(-1)}, {}, {})
    torch.testing.assert_close(y, x.cumsum(0))


def scatter(mode: str, loop_mode: Any, **more: Any) -> Kernel:
    place = read("b0", I0, I64)
    value = read("b1", I0)
    update = Store("b2", V0, value, mode, ((V0, place),), **more)  # type: ignore[arg-type]
    return kernel(
        [nest(loop(I0, 6, loop_mode), body=[update])],
        {"b0": (I64, "read"), "b1": (F32, "read"), "b2": (F32, "update")},
    )


def scatter_buffers() -> dict[str, torch.Tensor]:
    return {"b0": torch.tensor([3, 0, 3, 1, 0, 3]), "b1": torch.arange(6.0) + 1, "b2": torch.full((4,), 10.0)}


def test_the_last_writer_of_an_ordered_loop_wins() -> None:
    buffers = scatter_buffers()
    interpret_kernel(scatter("set", "ordered"), buffers, {}, {})
    assert buffers["b2"].tolist() == [5.0, 4.0, 10.0, 6.0]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("add", [17.0, 14.0, 10.0, 20.0]), ("mul", [100.0, 40.0, 10.0, 180.0]), ("min", [2.0, 4.0, 10.0, 1.0])],
)
def test_combining_is_allowed_in_any_order(mode: str, expected: list[float]) -> None:
    buffers = scatter_buffers()
    interpret_kernel(scatter(mode, "serial"), buffers, {}, {})
    assert buffers["b2"].tolist() == expected


def test_masked_accesses_touch_nothing() -> None:
    x, y = torch.arange(3.0), torch.full((3,), 7.0)
    inside = apply("lt", IndexValue(I64, I0), Constant(I64, 3))
    value = apply("add", read("b0", I0, mask=inside, other=5.0), Constant(F32, 1.0))
    masked = kernel(
        [
            nest(
                loop(I0, 5),
                body=[
                    store("b1", I0 - 1, value, mask=apply("gt", IndexValue(I64, I0), Constant(I64, 0))),
                ],
            )
        ],
        {"b0": (F32, "read"), "b1": (F32, "update")},
    )
    buffers = {"b0": x, "b1": torch.full((4,), 7.0)}
    interpret_kernel(masked, buffers, {}, {})
    assert buffers["b1"].tolist() == [2.0, 3.0, 6.0, 6.0] and torch.equal(y, torch.full((3,), 7.0))


def test_numbers_and_types() -> None:
    n = sympy.Symbol("n0", real=True)
    value = apply("mul", read("b0", I0), IndexValue(F32, n))
    half = kernel(
        [nest(loop(I0, 3), body=[store("b1", I0, value)])],
        {"b0": (torch.float16, "read"), "b1": (torch.bfloat16, "write")},
        numbers=[n],
    )
    x, y = torch.randn(3).half(), torch.empty(3, dtype=torch.bfloat16)
    interpret_kernel(half, {"b0": x, "b1": y}, {}, {n: 0.1})
    assert torch.equal(y, (x.float() * torch.tensor(0.1)).bfloat16())


COPY = read("b0", I0)
WRONG = {
    "out of range": (kernel([nest(loop(I0, 4), body=[store("b1", I0, read("b0", I0 + 1))])], IN_OUT), "out of range"),
    "negative offset": (kernel([nest(loop(I0, 4), body=[store("b1", I0 - 1, COPY)])], IN_OUT), "out of range"),
    "write to an input": (kernel([nest(loop(I0, 4), body=[store("b0", I0, COPY)])], IN_OUT), "read-only"),
    "two points set one element": (
        kernel([nest(loop(I0, 4), body=[store("b1", FloorDiv(I0, 2), COPY)])], IN_OUT),
        "set twice",
    ),
    "outer points share an element": (
        kernel(
            [nest(body=[store("b1", 0, COPY, mode="max")])],
            {"b0": (F32, "read"), "b1": (F32, "update")},
            outer=[loop(I0, 4, "parallel")],
        ),
        "different outer points",
    ),
    "an outer point reads what another writes": (
        kernel(
            [nest(body=[store("b1", I0, COPY)]), nest(body=[store("b2", I0, read("b1", 3 - I0))])],
            {**IN_OUT, "b2": (F32, "write")},
            outer=[loop(I0, 4, "parallel")],
        ),
        "different outer points",
    ),
    "a point of a nest reads what another writes": (
        kernel(
            [nest(loop(I0, 4), body=[store("b1", I0, COPY), store("b2", I0, read("b1", 3 - I0))])],
            {**IN_OUT, "b2": (F32, "write")},
        ),
        "different points of a nest",
    ),
    "reads before it writes": (
        kernel([nest(loop(I0, 4), body=[store("b1", I0, read("b1", I0))])], IN_OUT),
        "before it was written",
    ),
    "reads scratch of another outer point": (
        kernel(
            [
                nest(body=[store("s0", 0, COPY, mask=apply("eq", IndexValue(I64, I0), Constant(I64, 0)))]),
                nest(body=[store("b1", I0, read("s0", 0))]),
            ],
            IN_OUT,
            outer=[loop(I0, 4)],
            scratch=[Scratch("s0", F32, sympy.Integer(1))],
        ),
        "element 0 of s0 is read before it was written",
    ),
    "lanes of a vector add to one element": (scatter("add", "vector"), "lanes of a vector add"),
    "an unordered loop with collisions": (scatter("set", "serial"), "set twice"),
    "a local value nobody computed": (
        kernel([nest(loop(I0, 4), body=[store("b1", I0, Local(F32, "t"))])], IN_OUT),
        "t is used",
    ),
    "an unknown buffer": (kernel([nest(loop(I0, 4), body=[store("b1", I0, read("b7", I0))])], IN_OUT), "no buffer b7"),
    "an unknown symbol": (
        kernel([nest(loop(I0, 4), body=[store("b1", I0, read("b0", I1))])], IN_OUT),
        "i1 has no value",
    ),
    "an extreme of nothing": (
        kernel(
            [
                nest(
                    loop(I0, 4),
                    reduced=[loop(R0, 0)],
                    body=[Accumulate(("a",), "max", read("b0", R0))],
                    finish=[store("b1", I0, Local(F32, "a"))],
                )
            ],
            IN_OUT,
        ),
        "over nothing",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(name: str) -> None:
    wrong, message = WRONG[name]
    given = {"b0": torch.arange(4.0), "b1": torch.zeros(4), "b2": torch.zeros(4)}
    if wrong.buffers[0].dtype == I64:
        given = scatter_buffers()
    with pytest.raises(IrError, match=message) as caught:
        interpret_kernel(wrong, given, {}, {})
    assert "nest [" in str(caught.value), "the error shows no excerpt"


def test_atomic_stores_of_outer_points_may_meet() -> None:
    buffers = scatter_buffers()
    update = Store("b2", V0, read("b1", I0), "add", ((V0, read("b0", I0, I64)),), atomic=True)
    histogram = kernel(
        [nest(body=[update])],
        {"b0": (I64, "read"), "b1": (F32, "read"), "b2": (F32, "update")},
        outer=[loop(I0, 6, "parallel")],
    )
    interpret_kernel(histogram, buffers, {}, {})
    assert buffers["b2"].tolist() == [17.0, 14.0, 10.0, 20.0]
