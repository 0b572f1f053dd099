"""One broken kernel per rule; the sound ones they are made from pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ir_samples import (
    DONE,
    F16,
    F32,
    FOLD,
    I0,
    I1,
    I2,
    I3,
    I64,
    KERNEL,
    NEST,
    P0,
    P1,
    READ,
    S0,
    kernel_loop,
    load,
)

from mixbackend.backends.codegen.ir.check import check_kernel
from mixbackend.backends.codegen.ir.kernel import (
    BufferParameter,
    Carry,
    Kernel,
    KernelLoop,
    Let,
    Nest,
    Scratch,
    Store,
)
from mixbackend.backends.codegen.ir.scalar import Constant, Local, Read, apply
from mixbackend.contracts import IrError

COPY = Nest((kernel_loop(I1, P0, "vector"),), (), (Store("b1", P0 * I0 + I1, READ),))
SCANNED = Nest(
    (kernel_loop(I1, P0, "ordered"),), (), (Carry("c0", "sum", READ), Store("b1", P0 * I0 + I1, Local(F32, "c0")))
)


def with_nests(*nests: Nest) -> Kernel:
    return replace(KERNEL, nests=nests)


def with_body(*body: Any) -> Kernel:
    return with_nests(replace(COPY, body=body))


def with_loops(*loops: KernelLoop) -> Kernel:
    return with_nests(replace(COPY, loops=loops))


@pytest.mark.parametrize(
    "kernel", [KERNEL, with_nests(COPY), with_nests(SCANNED), with_nests(NEST, COPY)], ids=range(4)
)
def test_a_sound_kernel_passes(kernel: Kernel) -> None:
    check_kernel(kernel)


TWO = (kernel_loop(I1, P0, "vector"), kernel_loop(I2, 2, "vector"))
BROKEN_KERNELS: dict[str, tuple[Kernel, str]] = {
    "two vector loops": (with_loops(*TWO), "a nest has two vector loops"),
    "vector not innermost": (
        with_nests(replace(NEST, reduced=(*NEST.reduced, kernel_loop(I2, 2)))),
        "not the innermost",
    ),
    "parallel inside": (with_loops(kernel_loop(I1, P0, "parallel")), "a parallel loop inside a nest"),
    "ordered reduced": (
        with_nests(replace(NEST, reduced=(kernel_loop(I1, P0, "ordered"),))),
        "an ordered loop is reduced",
    ),
    "vector outside": (replace(KERNEL, outer=(kernel_loop(I0, P1, "vector"),)), "an outer loop is vector"),
    "ordered outside": (replace(KERNEL, outer=(kernel_loop(I0, P1, "ordered"),)), "an outer loop is ordered"),
    "unrolled without constant": (
        with_loops(kernel_loop(I1, P0, "unrolled")),
        "extent of an unrolled loop is not constant",
    ),
    "index used twice": (with_loops(kernel_loop(I1, P0), kernel_loop(I1, 2)), "the index i1 is used twice"),
    "index of an outer loop": (with_loops(kernel_loop(I1, P0), kernel_loop(I0, 2)), "the index i0 is used twice"),
    "index is a parameter": (with_loops(kernel_loop(I1, P0), kernel_loop(P1, 2)), "the index p1 is used twice"),
    "extent of an unknown symbol": (with_loops(kernel_loop(I1, S0)), "the symbol s0 is not known"),
    "extent of an inner index": (with_loops(kernel_loop(I1, I2 + 1), kernel_loop(I2, 3)), "the symbol i2 is not known"),
    "scratch over outer indices": (
        replace(KERNEL, scratch=(Scratch("s0", F32, P0 * I0),)),
        "the symbol i0 is not known",
    ),
    "work over indices": (replace(KERNEL, work=P0 * I0), "work is made of more than parameters"),
    "two buffers of one name": (replace(KERNEL, scratch=(Scratch("b0", F32, P0),)), "two buffers have one name"),
    "two parameters": (replace(KERNEL, parameters=(P0, P1, P0)), "two parameters have one symbol"),
    "access": (
        replace(KERNEL, buffers=(BufferParameter("b0", F16, "scan"), KERNEL.buffers[1])),
        "there is no access scan",
    ),  # type: ignore[arg-type]
    "finish without reduced": (with_nests(replace(COPY, finish=(DONE,))), "finish without reduced loops"),
    "fold without reduced": (with_body(FOLD), "a fold without reduced loops"),
    "fold in finish": (
        with_nests(replace(NEST, finish=(replace(FOLD, names=("a1",)), DONE))),
        "Accumulate has no place in finish",
    ),
    "fold read in the body": (
        with_nests(replace(NEST, body=(FOLD, Let("t0", Local(F32, "a0"))))),
        "a0 is not computed before its use",
    ),
    "value of the body in finish": (
        with_nests(replace(NEST, body=(FOLD, Let("t0", READ)), finish=(Store("b1", I0, Local(F32, "t0")),))),
        "t0 is not computed before its use",
    ),
    "reduced index in finish": (
        with_nests(replace(NEST, finish=(replace(DONE, offset=I1),))),
        "the symbol i1 is not known",
    ),
    "results of welford": (with_nests(replace(NEST, body=(replace(FOLD, kind="welford"),))), "welford has 2 results"),
    "type of a position": (with_nests(replace(NEST, body=(replace(FOLD, kind="argmin"),))), "a0 is not of type f32"),
    "kind of a fold": (with_nests(replace(NEST, body=(replace(FOLD, kind="all"),))), "all is not defined for f32"),
    "carry without ordered": (
        with_nests(replace(SCANNED, loops=(kernel_loop(I1, P0),))),
        "a carry needs one ordered loop",
    ),
    "carry and reduced": (
        with_nests(replace(SCANNED, reduced=(kernel_loop(I2, 2),))),
        "a carry needs one ordered loop",
    ),
    "name used twice": (with_body(Let("t0", READ), Let("t0", READ)), "the name t0 is used twice"),
    "name of a buffer": (with_body(Let("b0", READ)), "the name b0 is used twice"),
    "type of a local": (
        with_body(Let("t0", READ), Store("b1", I1, apply("to_dtype", Local(I64, "t0"), dtype=F32))),
        "t0 is not of type i64",
    ),
    "write to what is read": (with_body(replace(COPY.body[0], buffer="b0")), "b0 is written, and declared as read"),
    "read before written": (with_body(Store("b1", I1, Read(F32, "b1", I1))), "b1 is read before this kernel wrote it"),
    "scratch before written": (
        with_body(Store("b1", I1, Read(F32, "s0", I1))),
        "s0 is read before this kernel wrote it",
    ),
    "combined before written": (
        with_body(replace(COPY.body[0], mode="add")),
        "b1 is combined with before this kernel wrote it",
    ),
    "atomic scratch": (with_body(Store("s0", I1, READ, atomic=True)), "an atomic store to the scratch s0"),
    "unknown buffer": (with_body(replace(COPY.body[0], buffer="b9")), "there is no buffer b9"),
    "type of a store": (
        with_body(replace(COPY.body[0], value=Constant(I64, 1))),
        "b1 is stored as f32, its value is i64",
    ),
    "mode of a store": (with_body(replace(COPY.body[0], mode="or")), "there is no kind or"),
    "mask of a store": (with_body(replace(COPY.body[0], mask=READ)), "a mask is not bool"),
    "offset of a store": (with_body(replace(COPY.body[0], offset=I3)), "the symbol i3 is not known"),
    "type of a read": (
        with_body(replace(COPY.body[0], value=apply("to_dtype", Read(I64, "b0", I1), dtype=F32))),
        "b0 is read as i64, its values are f32",
    ),
    "load in a kernel": (with_body(replace(COPY.body[0], value=load("b0", I1))), "Load has no place on this level"),
}


@pytest.mark.parametrize("name", BROKEN_KERNELS)
def test_a_broken_kernel_is_refused(name: str) -> None:
    broken, message = BROKEN_KERNELS[name]
    with pytest.raises(IrError, match=message) as caught:
        check_kernel(broken)
    assert "    | " in str(caught.value), "the error shows no excerpt"
