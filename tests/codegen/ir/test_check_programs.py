"""One broken program per rule; the sound one they are made from passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy
from ir_samples import ALPHA, F16, F32, I0, KERNEL, N0, P0, ROWS, S0, X, sizes

from mixbackend.backends.codegen.ir.check import check_program
from mixbackend.backends.codegen.ir.kernel import (
    BufferParameter,
)
from mixbackend.backends.codegen.ir.program import KernelCall, OutputBuffer, Program, WorkspaceBuffer
from mixbackend.backends.codegen.ir.stages import (
    AliasOutput,
)
from mixbackend.contracts import IrError


def piece(name: str, start: Any, size: Any) -> WorkspaceBuffer:
    return WorkspaceBuffer(name, F32, sympy.sympify(start), sympy.sympify(size))


def call(source: str, target: str) -> KernelCall:
    first = replace(KERNEL, buffers=(BufferParameter("b0", F16 if source == "x" else F32, "read"), KERNEL.buffers[1]))
    return KernelCall(first, (source, target), (sympy.Integer(4), S0), (N0,))


W0, W1 = piece("w0", 0, 64 * S0), piece("w1", 64 * S0, 256)
PROGRAM = Program(
    (X, ROWS, ALPHA),
    (OutputBuffer("y", F32, sizes(S0), sizes(1)), AliasOutput("z", "x", sizes(4), sizes(1), sympy.Integer(0))),
    (W0, W1),
    64 * S0 + 256,
    (call("x", "w0"), call("w0", "w1"), call("w1", "y")),
)


def test_a_sound_program_passes() -> None:
    check_program(PROGRAM)
    reused = replace(PROGRAM, workspace=(*PROGRAM.workspace, piece("w2", 0, 64)))
    check_program(replace(reused, calls=(*PROGRAM.calls[:2], call("w1", "w2"), call("w2", "y"))))


def with_call(**changes: Any) -> Program:
    return replace(PROGRAM, calls=(replace(PROGRAM.calls[0], **changes), *PROGRAM.calls[1:]))


BROKEN_PROGRAMS: dict[str, tuple[Program, str]] = {
    "overlap": (
        replace(PROGRAM, workspace=(W0, replace(W1, start=sympy.Integer(0)))),
        "w0 and w1 overlap, and live at one time",
    ),
    "overlap for some sizes": (
        replace(PROGRAM, workspace=(W0, replace(W1, start=sympy.Integer(640)))),
        "w0 and w1 overlap",
    ),
    "alignment": (
        replace(PROGRAM, workspace=(W0, replace(W1, start=64 * S0 + 8))),
        "w1 does not start at a multiple of 64",
    ),
    "too large": (replace(PROGRAM, workspace_bytes=64 * S0), "w1 is not inside the workspace"),
    "number of buffers": (with_call(buffers=("x",)), "the kernel has 2 buffers"),
    "number of parameters": (with_call(parameters=(S0,)), "the kernel has 2 parameters"),
    "number of numbers": (with_call(numbers=()), "the kernel has 1 numbers"),
    "number that is none": (with_call(numbers=(S0,)), "s0 is no floating number that comes in"),
    "parameter of an unknown symbol": (with_call(parameters=(P0, S0)), "the symbol p0 is not known"),
    "unknown memory": (with_call(buffers=("x", "w7")), "there is no memory w7"),
    "input written": (with_call(buffers=("x", "rows")), "the input rows is written"),
    "type of memory": (with_call(buffers=("rows", "w0")), "rows is i64, the kernel's b0 is f16"),
    "written and passed twice": (
        replace(PROGRAM, calls=(*PROGRAM.calls, call("y", "y"))),
        "y is written, and passed twice",
    ),
    "read before written": (replace(PROGRAM, calls=PROGRAM.calls[1:]), "w0 is read before a call wrote it"),
    "output never written": (replace(PROGRAM, calls=PROGRAM.calls[:2]), "no call writes the output y"),
    "name used twice": (replace(PROGRAM, workspace=(W0, replace(W1, name="y"))), "two pieces of memory have one name"),
    "alias of nothing": (
        replace(PROGRAM, outputs=(PROGRAM.outputs[0], replace(PROGRAM.outputs[1], input="q"))),
        "q is no input tensor",
    ),  # type: ignore[call-arg]
    "strides of an output": (
        replace(PROGRAM, outputs=(replace(PROGRAM.outputs[0], strides=()),)),
        "as many strides as sizes",
    ),
    "symbol of the workspace": (replace(PROGRAM, workspace_bytes=P0), "the symbol p0 is not known"),
    "a broken kernel": (
        replace(PROGRAM, calls=(replace(PROGRAM.calls[0], kernel=replace(KERNEL, work=I0)),)),
        "work is made of more than parameters",
    ),
}


@pytest.mark.parametrize("name", BROKEN_PROGRAMS)
def test_a_broken_program_is_refused(name: str) -> None:
    broken, message = BROKEN_PROGRAMS[name]
    with pytest.raises(IrError, match=message) as caught:
        check_program(broken)
    assert "    | " in str(caught.value), "the error shows no excerpt"
