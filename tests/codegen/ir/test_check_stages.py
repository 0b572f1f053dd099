"""One broken graph per rule; the sound ones they are made from pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
from ir_samples import ALPHA, F16, F32, I0, I1, I2, I3, I32, I64, N0, ROWS, S0, V0, X, load, loop, sizes

from mixbackend.backends.codegen.ir.check import check_stages
from mixbackend.backends.codegen.ir.scalar import Apply, Constant, Expr, IndexValue, Read, apply
from mixbackend.backends.codegen.ir.stages import (
    AliasOutput,
    Concatenate,
    GraphOutput,
    Map,
    Part,
    Reduce,
    Scan,
    Scatter,
    Stage,
    StageGraph,
    TensorType,
)
from mixbackend.contracts import IrError

pytestmark = pytest.mark.smoke

OVER_X = (loop(I0, S0), loop(I1, 4))
ABS = apply("abs", load("x", I0, I1))


def graph(
    *stages: Stage, types: dict[str, TensorType] | None = None, outputs: Sequence[Any] | None = None
) -> StageGraph:
    """Stages over the inputs ``x``, ``rows`` and the number ``a``; the last target is the output ``y``."""
    declared = {"x": X.type, "rows": ROWS.type, **({"y": X.type} if types is None else types)}
    made = (GraphOutput("y", "y", sizes(4, 1)),) if outputs is None else tuple(outputs)
    return StageGraph((X, ROWS, ALPHA), tuple(declared.items()), tuple(stages), made)


def y_is(value: Expr, types: dict[str, TensorType] | None = None) -> StageGraph:
    return graph(Map("y", OVER_X, value), types=types)


def typed(dtype: torch.dtype, *dims: Any) -> dict[str, TensorType]:
    return {"y": TensorType(sizes(*dims), dtype)}


MASK = apply("lt", IndexValue(I64, I1), Constant(I64, 2))
SUM = Reduce(("y",), (loop(I0, S0),), (loop(I1, 4),), "sum", ABS)
ROW = load("rows", I2, dtype=I64)
SCATTER = Scatter(
    "y", OVER_X, Constant(F32, 0.0), (loop(I2, 3), loop(I3, 4)), (V0, I3), load("x", 0, I3), "add", ((V0, ROW),)
)
JOINED = Concatenate(
    "y",
    (loop(I0, S0), loop(I1, 8)),
    1,
    (Part(sympy.Integer(4), sympy.Integer(0), ABS), Part(sympy.Integer(4), sympy.Integer(4), ABS)),
)
VECTOR = typed(F32, S0)

SOUND_GRAPHS = {
    "map": y_is(ABS),
    "masked": y_is(load("x", I0, I1 - 1, mask=MASK, other=0.5)),
    "number": y_is(apply("mul", ABS, IndexValue(F32, N0))),
    "bound": y_is(load("x", V0, I1, bindings=((V0, load("rows", 0, dtype=I64)),))),
    "reduce": graph(SUM, types=VECTOR, outputs=[GraphOutput("y", "y", sizes(1))]),
    "one of two results": graph(
        replace(SUM, kind="welford", targets=(None, "y")), types=VECTOR, outputs=[GraphOutput("y", "y", sizes(1))]
    ),
    "scan": graph(Scan("y", OVER_X, 1, "sum", ABS)),
    "scatter": graph(SCATTER),
    "concatenate": graph(JOINED, types=typed(F16, S0, 8)),
    "alias": graph(outputs=[AliasOutput("y", "x", sizes(S0), sizes(4), sympy.Integer(1))], types={}),
}


@pytest.mark.parametrize("name", SOUND_GRAPHS)
def test_a_sound_graph_passes(name: str) -> None:
    check_stages(SOUND_GRAPHS[name])


BROKEN_GRAPHS: dict[str, tuple[StageGraph, str]] = {
    "operator unknown": (y_is(Apply(F32, "frobnicate", (ABS,))), "no operator frobnicate"),
    "arity": (y_is(Apply(F32, "add", (ABS,))), "add takes 2 arguments, it has 1"),
    "argument types differ": (y_is(Apply(F32, "add", (ABS, Constant(I64, 1)))), "add of different types: f32, i64"),
    "kind of argument": (
        y_is(apply("to_dtype", Apply(I64, "exp", (ROW_AT := load("rows", 0, dtype=I64),)), dtype=F32)),
        "exp is not defined for i64",
    ),
    "result is bool": (y_is(Apply(F32, "lt", (ABS, ABS))), "lt gives bool, the node says f32"),
    "result is the same": (y_is(Apply(F32, "neg", (ROW_AT,))), "neg of i64, the node says f32"),
    "condition": (y_is(Apply(F32, "where", (ABS, ABS, ABS))), "the condition of where is not bool"),
    "half is no compute type": (y_is(Constant(F16, 1.0)), "f16 is no compute type"),
    "constant too large": (y_is(apply("to_dtype", Constant(I32, 2**31), dtype=F32)), "2147483648 is no i32"),
    "constant of another type": (y_is(Constant(F32, True)), "True is no f32"),
    "mask": (y_is(load("x", I0, I1, mask=ABS)), "a mask is not bool"),
    "other": (y_is(load("x", I0, I1, mask=MASK, other=False)), "False is no f32"),
    "read undefined": (y_is(load("z", I0, I1)), "z is read, and not defined before"),
    "reads its own target": (y_is(load("y", I0, I1)), "y is read, and not defined before"),
    "rank": (y_is(load("x", I0)), "x has 2 dimensions, it is read with 1"),
    "read as another type": (
        y_is(apply("to_dtype", load("x", I0, I1, dtype=I64), dtype=F32)),
        "x is read as i64, its values are f32",
    ),
    "symbol unknown": (y_is(load("x", I0, I3)), "the symbol i3 is not known"),
    "bound symbol taken": (y_is(load("x", I0, I1, bindings=((I0, ROW_AT),))), "i0 is bound, and has a value already"),
    "bound to a float": (y_is(load("x", V0, I1, bindings=((V0, ABS),))), "v0 is bound to f32, no integer"),
    "bound twice": (y_is(load("x", V0, I1, bindings=((V0, ROW_AT), (V0, ROW_AT)))), "a symbol is bound twice"),
    "bound symbol elsewhere": (
        y_is(apply("add", load("x", V0, I1, bindings=((V0, ROW_AT),)), IndexValue(F32, V0))),
        "the symbol v0 is not known",
    ),
    "number in an index": (y_is(load("x", N0, I1)), "the floating number n_a is part of an index"),
    "number with others": (y_is(IndexValue(F32, N0 + 1)), "the floating number n_a \\+ 1 does not stand alone"),
    "number as integer": (y_is(apply("to_dtype", IndexValue(I64, N0), dtype=F32)), "the floating number n_a as i64"),
    "index function": (y_is(load("x", I0, sympy.floor(I1 / 3))), "is no index expression"),
    "kernel node": (y_is(Read(F32, "x", I0)), "Read has no place on this level"),
    "value type": (y_is(ABS, typed(I64, S0, 4)), "y is stored as i64, its value is f32"),
    "sizes": (y_is(ABS, typed(F16, S0, 5)), r"y is declared as f16\[s0, 5\], its loops make f16\[s0, 4\]"),
    "no type": (y_is(ABS, {}), "y has no type"),
    "type of nothing": (
        graph(Map("y", OVER_X, ABS), types={**typed(F16, S0, 4), "z": X.type}),
        "types of tensors that nothing defines",
    ),
    "defined twice": (
        graph(Map("y", OVER_X, ABS), Map("y", (loop(I2, S0), loop(I3, 4)), load("x", I2, I3))),
        "y is defined twice",
    ),
    "target is an input": (graph(Map("x", OVER_X, ABS), types={}, outputs=[]), "x is defined twice"),
    "index used twice": (graph(Map("y", (loop(I0, S0), loop(I0, 4)), load("x", I0, 0))), "the index i0 is used twice"),
    "index is a size": (graph(Map("y", (loop(S0, S0), loop(I1, 4)), load("x", S0, I1))), "the index s0 is used twice"),
    "results of welford": (graph(replace(SUM, kind="welford"), types=VECTOR), "welford has 2 results, not 1"),
    "kind of a reduction": (graph(replace(SUM, kind="any"), types=VECTOR), "any is not defined for f32"),
    "positions are int64": (graph(replace(SUM, kind="argmax"), types=VECTOR), "y is stored as f32, its value is i64"),
    "unknown kind": (graph(replace(SUM, kind="median"), types=VECTOR), "there is no kind median"),
    "axis of a scan": (graph(Scan("y", OVER_X, 2, "sum", ABS)), "there is no loop 2"),
    "kind of a scan": (
        graph(Scan("y", OVER_X, 1, "logsumexp", ROW_AT), types=typed(I64, S0, 4)),
        "logsumexp is not defined for i64",
    ),
    "parts leave a gap": (
        graph(replace(JOINED, parts=(JOINED.parts[1],)), types=typed(F16, S0, 8)),
        "a part starts at 4, the ones before end at 0",
    ),
    "parts fill too little": (
        graph(replace(JOINED, parts=(JOINED.parts[0],)), types=typed(F16, S0, 8)),
        "the parts fill 4 of 8",
    ),
    "axis of parts": (graph(replace(JOINED, axis=3), types=typed(F16, S0, 8)), "there is no loop 3"),
    "base uses an update's index": (graph(replace(SCATTER, base=load("x", I0, I3))), "the symbol i3 is not known"),
    "destination": (graph(replace(SCATTER, destination=(V0,))), "y has 2 dimensions, it is written with others"),
    "mask of a scatter": (graph(replace(SCATTER, mask=ROW)), "a mask is not bool"),
    "mode": (graph(replace(SCATTER, mode="divide")), "there is no kind divide"),
    "output is an input": (graph(outputs=[GraphOutput("y", "x", sizes(4, 1))], types={}), "x is no target of a stage"),
    "output undefined": (graph(types={}), "y is no target of a stage"),
    "strides of an output": (
        graph(Map("y", OVER_X, ABS), outputs=[GraphOutput("y", "y", sizes(1))]),
        "as many strides as sizes",
    ),
    "two outputs of one tensor": (
        graph(Map("y", OVER_X, ABS), outputs=[GraphOutput("y", "y", sizes(4, 1)), GraphOutput("z", "y", sizes(4, 1))]),
        "two outputs name one tensor",
    ),
    "alias of nothing": (
        graph(outputs=[AliasOutput("y", "z", sizes(4), sizes(1), sympy.Integer(0))], types={}),
        "z is no input tensor",
    ),
    "alias of a number": (
        graph(outputs=[AliasOutput("y", "a", sizes(4), sizes(1), sympy.Integer(0))], types={}),
        "a is no input tensor",
    ),
    "strides of an alias": (
        graph(outputs=[AliasOutput("y", "x", sizes(4), (), sympy.Integer(0))], types={}),
        "as many strides as sizes",
    ),
    "input of another type": (
        graph(Map("y", OVER_X, ABS), types={**typed(F16, S0, 4), "rows": X.type}),
        "an input of another type",
    ),
    "two inputs of one name": (replace(y_is(ABS), inputs=(X, X, ROWS, ALPHA)), "two inputs have one name"),
    "tensor with two types": (replace(y_is(ABS), types=(*y_is(ABS).types, ("y", X.type))), "a tensor has two types"),
    "strides of an input": (
        replace(y_is(ABS), inputs=(replace(X, strides=sizes(1)), ROWS, ALPHA)),
        "as many strides as sizes",
    ),
}


@pytest.mark.parametrize("name", BROKEN_GRAPHS)
def test_a_broken_graph_is_refused(name: str) -> None:
    broken, message = BROKEN_GRAPHS[name]
    with pytest.raises(IrError, match=message) as caught:
        check_stages(broken)
    assert "    | " in str(caught.value), "the error shows no excerpt"


def test_all_problems_come_in_one_error() -> None:
    broken = graph(
        Map("y", OVER_X, load("z", I0, I3)), outputs=[GraphOutput("y", "nowhere", sizes(1))], types=typed(I64, S0, 4)
    )
    with pytest.raises(IrError, match="4 problems in a stage graph") as caught:
        check_stages(broken)
    for part in ("z is read", "symbol i3", "stored as i64", "nowhere is no target", "| map y[i0<s0, i1<4] = z[i0, i3]"):
        assert part in str(caught.value)
