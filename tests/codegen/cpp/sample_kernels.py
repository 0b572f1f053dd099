"""Small kernels written by hand, one for each way a kernel can be printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from printed_kernels import index, parameter

from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo, index_symbol
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
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, Local, Read, apply, compute_dtype

FLOAT, LONG = torch.float32, torch.int64
i0, i1, i2 = index(0), index(1), index(2)
p0, p1, p2 = parameter(0), parameter(1), parameter(2)
v0 = index_symbol("v0")


def kernel(buffers: str, nests: Sequence[Nest], outer: Sequence[KernelLoop] = (), **more: Any) -> Kernel:
    """A kernel; ``buffers`` is ``access dtype`` for each, such as ``"read float32, write bool"``."""
    kinds = [item.split() for item in buffers.split(",")]
    parameters = [BufferParameter(f"b{n}", getattr(torch, kind), access) for n, (access, kind) in enumerate(kinds)]  # type: ignore[arg-type]
    used = set().union(*(loop.extent.free_symbols for loop in outer))
    for nest in nests:
        for loop in (*nest.loops, *nest.reduced):
            used |= loop.extent.free_symbols
        for statement in (*nest.body, *nest.finish):
            used |= statement.offset.free_symbols if isinstance(statement, Store) else set()
    sizes = tuple(sorted(used & {p0, p1, p2}, key=str))
    settings = {"numbers": (), "scratch": (), "parameters": sizes, "work": sympy.Integer(10**7), **more}
    return Kernel(buffers=tuple(parameters), outer=tuple(outer), nests=tuple(nests), **settings)


def loop(symbol: sympy.Symbol, extent: Any, mode: Any = "serial") -> KernelLoop:
    return KernelLoop(symbol, sympy.sympify(extent), mode)


def load(buffer: str, offset: Any, dtype: torch.dtype = FLOAT, **more: Any) -> Expr:
    return Read(compute_dtype(dtype), buffer, sympy.sympify(offset), **more)


def store(buffer: str, offset: Any, value: Expr, **more: Any) -> Store:
    return Store(buffer, sympy.sympify(offset), value, **more)


def number(value: float, dtype: torch.dtype = FLOAT) -> Expr:
    return Constant(dtype, value)


def _flat(dtype: str, value: Any, result: str) -> Kernel:
    kind = getattr(torch, dtype)
    x, y = load("b0", i0, kind), load("b1", i0, kind)
    nest = Nest((loop(i0, p0, "vector"),), (), (store("b2", i0, value(x, y)),))
    return kernel(f"read {dtype}, read {dtype}, write {result}", [nest])


def _gelu(x: Expr, _: Expr) -> Expr:
    inner = apply("add", apply("erf", apply("mul", x, number(0.7071067811865476))), number(1.0))
    return apply("mul", apply("mul", x, number(0.5)), inner)


def _tiled() -> Kernel:
    """Tiles of 100 points in parallel; the last one is smaller."""
    at = i0 * 100 + i1
    extent = sympy.Min(100, p0 - 100 * i0)
    body = store("b1", at, apply("add", load("b0", at), number(1.0)))
    return kernel(
        "read float32, write float32", [Nest((loop(i1, extent, "vector"),), (), (body,))], [loop(i0, p1, "parallel")]
    )


def _fold(kind: Any, dtype: str, result: str, value: Any = None) -> Kernel:
    """Fold rows."""
    kind_of_value = getattr(torch, dtype)
    x = load("b0", i0 * p1 + i1, kind_of_value)
    x = x if value is None else value(x)
    fold = Accumulate(("r0",), kind, x)
    local = Local(LONG if kind.startswith("arg") else x.dtype, "r0")
    nest = Nest((), (loop(i1, p1, "vector"),), (fold,), (store("b1", i0, local),))
    return kernel(f"read {dtype}, write {result}", [nest], [loop(i0, p0, "parallel")])


def _columns(kind: Any, dtype: str, result: str) -> Kernel:
    """Fold columns, a vector of them at a time, scaled by a value per column."""
    x = load("b0", i0 * p1 + i1, getattr(torch, dtype))
    fold = Accumulate(("r0",), kind, x)
    local = Local(LONG if kind.startswith("arg") else x.dtype, "r0")
    nest = Nest((loop(i1, p1, "vector"),), (loop(i0, p0),), (fold,), (store("b1", i1, local),))
    return kernel(f"read {dtype}, write {result}", [nest])


def _welford(rows: bool) -> Kernel:
    x = load("b0", i0 * p1 + i1)
    fold = Accumulate(("r0", "r1"), "welford", x)
    place = i0 if rows else i1
    finish = (store("b1", place, Local(FLOAT, "r0")), store("b2", place, Local(FLOAT, "r1")))
    buffers = "read float32, write float32, write float32"
    if rows:
        return kernel(buffers, [Nest((), (loop(i1, p1, "vector"),), (fold,), finish)], [loop(i0, p0, "parallel")])
    return kernel(buffers, [Nest((loop(i1, p1, "vector"),), (loop(i0, p0),), (fold,), finish)])


def _softmax() -> Kernel:
    """Three nests at one outer point, scratch between them."""
    at = i0 * p1 + i1
    row = loop(i1, p1, "vector")
    top = Nest((), (row,), (Accumulate(("r0",), "max", load("b0", at)),), (store("s0", 0, Local(FLOAT, "r0")),))
    shifted = apply("exp", apply("sub", load("b0", at), load("s0", 0)))
    folded = (Let("t0", shifted), store("s1", i1, Local(FLOAT, "t0")), Accumulate(("r0",), "sum", Local(FLOAT, "t0")))
    total = Nest((), (row,), folded, (store("s0", 0, Local(FLOAT, "r0")),))
    out = Nest((row,), (), (store("b1", at, apply("div", load("s1", i1), load("s0", 0))),))
    scratch = (Scratch("s0", FLOAT, sympy.Integer(1)), Scratch("s1", FLOAT, p1))
    return kernel("read float32, write float32", [top, total, out], [loop(i0, p0, "parallel")], scratch=scratch)


def _transposed(dtype: str) -> Kernel:
    value = load("b0", i0 * p1 + i1, getattr(torch, dtype))
    nest = Nest((loop(i0, p0, "vector"), loop(i1, p1)), (), (store("b1", i1 * p0 + i0, value),))
    return kernel(f"read {dtype}, write {dtype}", [nest])


def _scatter_add(atomic: bool) -> Kernel:
    """Rows are added to rows of the result, some to the same."""
    row = load("b1", i0, LONG)
    update = store("b2", v0 * p1 + i1, load("b0", i0 * p1 + i1), mode="add", bindings=((v0, row),), atomic=atomic)
    columns = loop(i1, p1, "vector")
    if atomic:
        nests, outer = [Nest((columns,), (), (update,))], [loop(i0, p0, "parallel")]
    else:
        nests, outer = [Nest((loop(i0, p0, "ordered"), columns), (), (update,))], []
    return kernel("read float32, read int64, update float32", nests, outer)


def _histogram() -> Kernel:
    """Lanes may meet at one element."""
    update = store("b1", v0, number(1, LONG), mode="add", bindings=((v0, load("b0", i0, LONG)),))
    return kernel("read int64, update int64", [Nest((loop(i0, p0, "ordered"),), (), (update,))])


def _cumulative(kind: Any, across: bool) -> Kernel:
    """Along rows or down columns."""
    x = load("b0", i0 * p1 + i1)
    body = (Carry("c0", kind, x), store("b1", i0 * p1 + i1, Local(FLOAT, "c0")))
    loops = (loop(i0, p0, "ordered"), loop(i1, p1, "vector")) if across else (loop(i0, p0), loop(i1, p1, "ordered"))
    return kernel("read float32, write float32", [Nest(loops, (), body)])


def _shifted() -> Kernel:
    """``x[i - 1]``, zero-padded in front, and 7 where a flag is unset."""
    inside = apply("ge", IndexValue(LONG, i0), number(1, LONG))
    flag = load("b1", i0, torch.bool)
    padded = load("b0", i0 - 1, mask=inside, other=0.0)
    chosen = load("b0", p0 - 1 - i0, mask=flag, other=7.0)
    every = load("b0", 0, mask=flag, other=-1.0)
    body = store("b2", i0, apply("add", apply("add", padded, chosen), every), mask=apply("or", flag, inside))
    return kernel("read float32, read bool, update float32", [Nest((loop(i0, p0, "vector"),), (), (body,))])


def _gathered() -> Kernel:
    """A row of a table for each index, and every lane from elsewhere."""
    row = load("b1", i0, LONG)
    rows = Nest(
        (loop(i0, p0), loop(i1, p1, "vector")),
        (),
        (store("b2", i0 * p1 + i1, load("b0", v0 * p1 + i1, bindings=((v0, row),))),),
    )
    lanes = Nest((loop(i0, p0, "vector"),), (), (store("b3", i0, load("b0", v0 * p1 + 1, bindings=((v0, row),))),))
    return kernel("read float32, read int64, write float32, write float32", [rows, lanes])


def _concatenated() -> Kernel:
    first = Nest((loop(i0, p0, "vector"),), (), (store("b2", i0, load("b0", i0)),))
    second = Nest((loop(i1, p1, "vector"),), (), (store("b2", p0 + i1, load("b1", 2 * i1)),))
    return kernel("read float32, read float32, write float32", [first, second])


def _blocked_index() -> Kernel:
    """Lanes stay in a block of 32: still contiguous; in blocks of 6 they do not."""
    even = load("b0", FloorDiv(i0, 32) * 40 + Modulo(i0, 32))
    odd = load("b0", FloorDiv(i0, 6) * 7 + Modulo(i0, 6))
    value = apply("add", even, apply("mul", odd, apply("to_dtype", IndexValue(LONG, Modulo(i0, 5)), dtype=FLOAT)))
    return kernel("read float32, write float32", [Nest((loop(i0, p0, "vector"),), (), (store("b1", i0, value),))])


def _windows() -> Kernel:
    """Windows in steps of two that overlap the edges, comparisons both ways round, and everything backwards."""
    before, after = IndexValue(LONG, 2 * i0 - 1), IndexValue(LONG, 2 * i0 + 3)
    last = IndexValue(LONG, 2 * p0 - 4)
    inside = apply("and", apply("ge", before, number(0, LONG)), apply("gt", number(40, LONG), before))
    left = load("b0", 2 * i0 - 1, mask=inside, other=-2.0)
    right = load("b0", 2 * i0 + 3, mask=apply("le", after, last), other=-3.0)
    first = apply("lt", last, IndexValue(LONG, i0 + 9))
    backwards = apply("to_dtype", load("b1", p0 - 1 - i0, torch.int16), dtype=FLOAT)
    middle = apply("where", first, load("b0", 2 * i0), backwards)
    value = apply("maximum", apply("add", left, right), middle)
    return kernel(
        "read float32, read int16, write float32", [Nest((loop(i0, p0, "vector"),), (), (store("b2", i0, value),))]
    )


def _every_mode() -> Kernel:
    """Stores that combine, by vectors, with and without a mask."""
    x, flag = load("b0", i0), load("b1", i0, torch.bool)
    body = (
        store("b2", i0, x, mode="add"),
        store("b3", i0, x, mode="mul", mask=flag),
        store("b4", 3 * i0, x, mode="max"),
        store("b5", p0 - 1 - i0, x, mode="min", mask=flag),
    )
    buffers = "read float32, read bool, update float32, update bfloat16, update float32, update float16"
    return kernel(buffers, [Nest((loop(i0, p0, "vector"),), (), body)])


def _window() -> Kernel:
    """A sum over a window of three, unrolled, and a number from outside."""
    x = load("b0", i0 + i1)
    scale = IndexValue(FLOAT, sympy.Symbol("n0", real=True))
    finish = (store("b1", i0, apply("mul", Local(FLOAT, "r0"), scale)),)
    nest = Nest((loop(i0, p0, "vector"),), (loop(i1, 3, "unrolled"),), (Accumulate(("r0",), "sum", x),), finish)
    return kernel("read float32, write float32", [nest], numbers=(sympy.Symbol("n0", real=True),))


def _two_reduced() -> Kernel:
    """Two kept and two reduced loops, with an epilogue by the kept ones."""
    x = load("b0", (i0 * p1 + i1) * p2 + i2)
    finish = (
        store("b1", i1, apply("div", Local(FLOAT, "r0"), apply("to_dtype", IndexValue(LONG, p0 * p2), dtype=FLOAT))),
    )
    folds = (Accumulate(("r0",), "sum", apply("exp", x)), Accumulate(("r1",), "max", x))
    finish += (store("b2", i1, Local(FLOAT, "r1")),)
    return kernel(
        "read float32, write float32, write float32",
        [Nest((), (loop(i0, p0), loop(i2, p2, "vector")), folds, finish)],
        [loop(i1, p1, "parallel")],
    )


def _logic(x: Expr, y: Expr) -> Expr:
    less = apply("lt", x, y)
    return apply("and", apply("ne", less, apply("eq", x, y)), apply("not", apply("isnan", x)))


def _byte(x: Expr, y: Expr) -> Expr:
    return apply("sub", apply("mul", x, y), apply("shift_left", y, Constant(y.dtype, 3)))


SAMPLES: dict[str, Kernel] = {
    "flat_gelu": _flat("float32", _gelu, "float32"),
    "flat_bfloat16": _flat("bfloat16", lambda x, y: apply("add", x, y), "bfloat16"),
    "flat_int64": _flat("int64", lambda x, y: apply("mul", apply("add", x, y), number(3, LONG)), "int64"),
    "flat_int8": _flat("int8", _byte, "int8"),
    "flat_uint8": _flat("uint8", _byte, "uint8"),
    "flat_bool": _flat("float32", _logic, "bool"),
    "flat_double": _flat("float64", lambda x, y: apply("where", apply("gt", x, y), x, apply("neg", y)), "float64"),
    "bool_order": _flat("bool", lambda x, y: apply("ge", x, apply("minimum", x, y)), "bool"),
    "tiled": _tiled(),
    "row_sum": _fold("sum", "float32", "float32"),
    "row_sum_double": _fold("sum", "float64", "float64"),
    "row_sum_int64": _fold("sum", "int64", "int64"),
    "row_prod": _fold("prod", "float32", "float32"),
    "row_max": _fold("max", "float32", "float32"),
    "row_min_uint8": _fold("min", "uint8", "uint8"),
    "row_max_bool": _fold("max", "bool", "bool"),
    "row_any": _fold("any", "bool", "bool"),
    "row_all": _fold("all", "float32", "bool", lambda x: apply("gt", x, number(-1.5))),
    "row_argmax": _fold("argmax", "float32", "int64"),
    "row_argmin": _fold("argmin", "float32", "int64"),
    "row_argmax_int64": _fold("argmax", "int64", "int64"),
    "column_sum": _columns("sum", "float32", "float32"),
    "column_sum_half": _columns("sum", "float16", "float16"),
    "column_max": _columns("max", "float32", "float32"),
    "column_argmin": _columns("argmin", "float32", "int64"),
    "row_welford": _welford(rows=True),
    "column_welford": _welford(rows=False),
    "softmax": _softmax(),
    "transposed": _transposed("float32"),
    "transposed_bfloat16": _transposed("bfloat16"),
    "transposed_int8": _transposed("int8"),
    "transposed_int64": _transposed("int64"),
    "transposed_double": _transposed("float64"),
    "windows": _windows(),
    "scatter_add": _scatter_add(atomic=False),
    "scatter_add_atomic": _scatter_add(atomic=True),
    "histogram": _histogram(),
    "cumsum_rows": _cumulative("sum", across=False),
    "cumsum_columns": _cumulative("sum", across=True),
    "cumprod_rows": _cumulative("prod", across=False),
    "cummax_rows": _cumulative("max", across=False),
    "cummin_rows": _cumulative("min", across=False),
    "cummax_columns": _cumulative("max", across=True),
    "logcumsumexp_rows": _cumulative("logsumexp", across=False),
    "logcumsumexp_columns": _cumulative("logsumexp", across=True),
    "shifted": _shifted(),
    "gathered": _gathered(),
    "concatenated": _concatenated(),
    "blocked_index": _blocked_index(),
    "every_mode": _every_mode(),
    "window": _window(),
    "two_reduced": _two_reduced(),
}
"""Kernels by name; sizes are ``p0``, ``p1`` and ``p2``."""
