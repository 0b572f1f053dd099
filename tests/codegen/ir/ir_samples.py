"""Names and small sound pieces of the intermediate representation, for the tests of this folder."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.kernel import (
    Accumulate,
    BufferParameter,
    Kernel,
    KernelLoop,
    Nest,
    Scratch,
    Store,
)
from mixbackend.backends.codegen.ir.scalar import Load, Local, Read
from mixbackend.backends.codegen.ir.stages import (
    Loop,
    NumberInput,
    StridedInput,
    TensorType,
)

F16, F32, I32, I64, BOOL = torch.float16, torch.float32, torch.int32, torch.int64, torch.bool
I0, I1, I2, I3, V0 = map(index_symbol, ("i0", "i1", "i2", "i3", "v0"))
S0 = sympy.Symbol("s0", integer=True, positive=True)
N0 = sympy.Symbol("n_a", real=True)
P0, P1 = index_symbol("p0"), index_symbol("p1")


def sizes(*values: Any) -> tuple[sympy.Expr, ...]:
    return tuple(map(sympy.sympify, values))


def loop(index: sympy.Symbol, size: Any) -> Loop:
    return Loop(index, sympy.sympify(size))


def load(name: str, *index: Any, dtype: torch.dtype = F32, **more: Any) -> Load:
    return Load(dtype, name, sizes(*index), **more)


X = StridedInput("x", TensorType(sizes(S0, 4), F16), sizes(4, 1))
ROWS = StridedInput("rows", TensorType(sizes(3), I64), sizes(1))
ALPHA = NumberInput("a", N0)


def kernel_loop(index: sympy.Symbol, extent: Any, mode: Any = "serial") -> KernelLoop:
    return KernelLoop(index, sympy.sympify(extent), mode)


READ = Read(F32, "b0", P0 * I0 + I1)
DONE = Store("b1", I0, Local(F32, "a0"))
FOLD = Accumulate(("a0",), "sum", READ)
NEST = Nest((), (kernel_loop(I1, P0, "vector"),), (FOLD,), (DONE,))
KERNEL = Kernel(
    (P0, P1),
    (N0,),
    (BufferParameter("b0", F16, "read"), BufferParameter("b1", F32, "write")),
    (Scratch("s0", F32, P0),),
    (kernel_loop(I0, P1, "parallel"),),
    (NEST,),
    P0 * P1,
)
