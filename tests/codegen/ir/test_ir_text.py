"""Text of the intermediate representation: complete, equal for equal values, free of everything accidental."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import sympy
from ir_samples import (
    ALPHA,
    DONE,
    F16,
    F32,
    FOLD,
    I0,
    I1,
    I2,
    I64,
    KERNEL,
    NEST,
    P0,
    ROWS,
    S0,
    V0,
    X,
    load,
    loop,
    sizes,
)

from mixbackend.backends.codegen.ir.kernel import Let, Store
from mixbackend.backends.codegen.ir.program import (
    KernelCall,
    OutputBuffer,
    Program,
    Refusal,
    WorkspaceBuffer,
)
from mixbackend.backends.codegen.ir.scalar import Constant, IndexValue, Read, apply
from mixbackend.backends.codegen.ir.stages import (
    AliasOutput,
    Concatenate,
    GraphOutput,
    Map,
    Part,
    Reduce,
    Scan,
    Scatter,
    StageGraph,
    TensorType,
)

VALUE = load("x", I0, I1)
MASK = apply("lt", IndexValue(I64, I1), Constant(I64, 2))
ROW = load("rows", 0, dtype=I64)


def test_a_shared_part_is_named_once() -> None:
    inner = apply("add", VALUE, apply("exp", VALUE))
    assert str(apply("mul", inner, inner)) == "%0 = x[i0, i1]\n%1 = add(%0, exp(%0))\nmul(%1, %1)"


def test_a_long_part_is_named_and_leaves_are_not() -> None:
    chain = VALUE
    for _ in range(40):
        chain = apply("add", chain, Constant(F32, 1.0))
    lines = str(chain).split("\n")
    assert len(lines) > 1 and max(map(len, lines)) < 120
    assert all("%" not in line.split(" = ")[0].lstrip("%") for line in lines[:-1])


def test_expressions_show_masks_bindings_and_types() -> None:
    assert str(load("x", I0, I1 - 1, mask=MASK, other=0.5)) == "x[i0, i1 - 1; if lt(index(i1):i64, 2:i64) else 0.5]"
    assert str(load("x", V0, I1, bindings=((V0, ROW),))) == "x[v0, i1; v0 = rows[0]]"
    assert str(apply("to_dtype", ROW, dtype=F32)) == "to_f32(rows[0])"
    assert str(Read(F32, "b0", 4 * I0 + I1)) == "b0[4*i0 + i1]"
    assert str(Constant(F32, float("inf"))) == "inf:f32" and str(Constant(F32, -0.0)) == "-0.0:f32"


def test_a_stage_graph() -> None:
    over = (loop(I0, S0), loop(I1, 4))
    stages = (
        Map("m", over, VALUE, ("relu",)),
        Reduce((None, "r"), (loop(I0, S0),), (loop(I1, 4),), "welford", VALUE),
        Scan("s", over, 1, "sum", VALUE),
        Concatenate("c", over, 1, (Part(sympy.Integer(4), sympy.Integer(0), VALUE),)),
        Scatter("t", over, Constant(F32, 0.0), (loop(I2, 3),), (V0, I2), VALUE, "add", ((V0, ROW),), MASK),
    )
    types = [(name, TensorType(sizes(S0, 4), F16)) for name in ("m", "s", "c", "t")]
    outputs = (GraphOutput("o", "m", sizes(4, 1)), AliasOutput("a", "x", sizes(4), sizes(1), S0))
    graph = StageGraph((X, ROWS, ALPHA), (("x", X.type), *types), stages, outputs)
    assert (
        str(graph)
        == """stages
    input x: f16[s0, 4] strides [4, 1]
    input rows: i64[3] strides [1]
    input a: number n_a
    map m[i0<s0, i1<4] = x[i0, i1]  # stored f16; from relu
    reduce welford (_, r)[i0<s0] over [i1<4] = x[i0, i1]
    scan sum s[i0<s0, i1<4] along i1 = x[i0, i1]  # stored f16
    concatenate c[i0<s0, i1<4] along i1  # stored f16
        i1<4 at 0 = x[i0, i1]
    scatter add t[i0<s0, i1<4] for [i2<3]  # stored f16
        base = 0.0:f32
        t[v0, i2; v0 = rows[0]; if lt(index(i1):i64, 2:i64)] add= x[i0, i1]
    output o = m strides [4, 1]
    output a = view of x [4] strides [1] offset s0"""
    )


def test_a_program() -> None:
    call = KernelCall(KERNEL, ("x", "y"), (sympy.Integer(4), S0), (ALPHA.symbol,), ("sum",))
    program = Program(
        (X, ALPHA),
        (OutputBuffer("y", F32, sizes(S0), sizes(1)),),
        (WorkspaceBuffer("w0", F32, sympy.Integer(0), 64 * S0),),
        64 * S0,
        (call, replace(call, buffers=("x", "w0"), origins=())),
        (Refusal("m", "r", "different loops"),),
    )
    assert (
        str(program)
        == """program
    input x: f16[s0, 4] strides [4, 1]
    input a: number n_a
    output y: f32[s0] strides [1]
    workspace 64*s0 bytes
        w0: f32 at 0, 64*s0 bytes
    call kernel0(x, y) with p0 = 4, p1 = s0, n_a = n_a  # from sum
    call kernel0(x, w0) with p0 = 4, p1 = s0, n_a = n_a
    kernel0[p0, p1]
        numbers [n_a]
        read b0: f16
        write b1: f32
        scratch s0: f32[p0]
        work p0*p1
        outer [parallel i0<p1]
            nest []
                reduce [vector i1<p0]
                    accumulate sum a0 with b0[i0*p0 + i1]
                finish
                    b1[i0] = a0
    not fused: m and r: different loops"""
    )


def test_statements() -> None:
    value = Read(F32, "b0", I0)
    assert str(Store("b1", P0 * I0, value, "add", atomic=True)) == "b1[i0*p0] atomic add= b0[i0]"
    assert str(Store("b1", V0, value, bindings=((V0, ROW),), mask=MASK)).startswith("b1[v0; v0 = rows[0]; if lt(")
    assert str(Let("t0", apply("mul", value, value))) == "%0 = b0[i0]\nt0 = mul(%0, %0)"


def test_everything_that_makes_two_kernels_different_is_printed() -> None:
    changed = [
        replace(KERNEL, work=P0),
        replace(KERNEL, numbers=()),
        replace(KERNEL, scratch=()),
        replace(KERNEL, buffers=KERNEL.buffers[::-1]),
        replace(KERNEL, outer=(replace(KERNEL.outer[0], mode="serial"),)),
        replace(KERNEL, nests=(replace(NEST, reduced=(replace(NEST.reduced[0], mode="serial"),)),)),
        replace(KERNEL, nests=(replace(NEST, body=(replace(FOLD, kind="prod"),)),)),
        replace(KERNEL, nests=(replace(NEST, finish=(replace(DONE, mode="max"),)),)),
        replace(KERNEL, nests=(NEST, NEST)),
    ]
    assert len({str(kernel) for kernel in (KERNEL, *changed)}) == len(changed) + 1


def test_text_does_not_depend_on_hashing() -> None:
    script = (
        "import sympy; from mixbackend.backends.codegen.ir.scalar import *; "
        "from mixbackend.backends.codegen.ir.indices import *; "
        "a, b, c = map(index_symbol, 'abc'); "
        "e = sympy.Min(a + b * c, FloorDiv(c, a + 1), Modulo(b, c)) + a * b + c; "
        "x = Load(torch.float32, 'x', (e, b), ((a, Load(torch.int64, 'r', (c,))), (c, Load(torch.int64, 'q', (b,))))); "
        "print(apply('mul', apply('add', x, x), x))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(texts) == 1 and "%0" in texts.pop()
