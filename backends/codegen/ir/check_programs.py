"""Checker of programs.

Place: after ``schedule``, in tests and under debugging; the runner and targets may rely on what it checks.
Input: a program. Output: nothing, or one error with every violated rule of ``ir.program``, or of one of its kernels.
Invariants: positions in the workspace that depend on sizes are compared for a number of values of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sympy

from mixbackend.backends.codegen.ir.check_expressions import Scope, check_index
from mixbackend.backends.codegen.ir.check_kernels import check_kernel
from mixbackend.backends.codegen.ir.check_stages import check_outputs, input_symbols
from mixbackend.backends.codegen.ir.check_templates import check_template_kernel
from mixbackend.backends.codegen.ir.errors import Problems
from mixbackend.backends.codegen.ir.kernel import BufferParameter, TemplateKernel
from mixbackend.backends.codegen.ir.program import KernelCall, OutputBuffer, Program, WorkspaceBuffer
from mixbackend.backends.codegen.ir.scalar import is_checked
from mixbackend.backends.codegen.ir.stages import AliasOutput, StridedInput
from mixbackend.backends.codegen.ir.text import listing, type_text

_ALIGNMENT = 64
_SAMPLES = ((1, 0), (2, 1), (3, 5), (17, 3), (64, 0), (1000, 37))
"""Values tried for size symbols: the symbol at place ``k`` becomes ``a + b * k``."""


def check_program(program: Program) -> None:
    """Check a program and its kernels.

    Raises:
        IrError: it breaks a rule.
    """
    for kernel in program.kernels:
        if isinstance(kernel, TemplateKernel):
            check_template_kernel(kernel)
        else:
            check_kernel(kernel)
    _ProgramCheck(program).run()


class _ProgramCheck:
    """One check: which memory holds values so far, and what is wrong."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._problems = Problems()
        self._sizes, self._numbers = input_symbols(program.inputs)
        self._types = {item.name: item.type.dtype for item in program.inputs if isinstance(item, StridedInput)}
        self._inputs = frozenset(self._types)
        outputs = tuple(item for item in program.outputs if isinstance(item, OutputBuffer))
        fresh: tuple[OutputBuffer | WorkspaceBuffer, ...] = (*outputs, *program.workspace)
        names = [*self._types, *(item.name for item in fresh)]
        self._problems.expect(len(set(names)) == len(names), "two pieces of memory have one name", listing(names))
        self._types.update({item.name: item.dtype for item in fresh})
        self._written: set[str] = set(self._inputs)

    def run(self) -> None:
        for item in self._program.outputs:
            self._output(item)
        for call in self._program.calls:
            self._call(call)
        self._telling()
        for item in self._program.outputs:
            if isinstance(item, OutputBuffer) and 0 not in item.sizes:
                self._problems.expect(item.name in self._written, f"no call writes the output {item.name}", item)
        self._workspace()
        self._problems.raise_all("program")

    def _scope(self, excerpt: Any) -> Scope:
        return Scope(self._problems, excerpt, self._sizes, self._numbers, {}, {})

    def _output(self, item: OutputBuffer | AliasOutput) -> None:
        if isinstance(item, AliasOutput):
            check_outputs(self._program.inputs, [item], self._scope(item))
            return
        self._problems.expect(len(item.sizes) == len(item.strides), "as many strides as sizes", item)
        for expression in (*item.sizes, *item.strides):
            check_index(expression, self._scope(item))

    # -- calls ----------------------------------------------------------------------------------------------------

    def _call(self, call: KernelCall) -> None:
        kernel, expect = call.kernel, self._problems.expect
        expect(
            len(call.parameters) == len(kernel.parameters), f"the kernel has {len(kernel.parameters)} parameters", call
        )
        for value in call.parameters:
            check_index(value, self._scope(call))
        expect(len(call.numbers) == len(kernel.numbers), f"the kernel has {len(kernel.numbers)} numbers", call)
        for symbol in call.numbers:
            expect(symbol in self._numbers, f"{symbol} is no floating number that comes in", call)
        if not expect(len(call.buffers) == len(kernel.buffers), f"the kernel has {len(kernel.buffers)} buffers", call):
            return
        pairs = list(zip(kernel.buffers, call.buffers, strict=True))
        for parameter, name in pairs:
            self._buffer(parameter, name, call)
        written = [name for parameter, name in pairs if parameter.access != "read"]
        for name in written:
            expect(call.buffers.count(name) == 1, f"{name} is written, and passed twice", call)
        self._written.update(written)

    def _telling(self) -> None:
        """Nothing is written into an input before everything was told that may be."""
        written = frozenset(self._program.written)
        writing = False
        for call in self._program.calls:
            writing = writing or call.writes(written)
            self._problems.expect(
                not (writing and is_checked(call.kernel)), "tells after inputs are written into", call
            )

    def _buffer(self, parameter: BufferParameter, name: str, call: KernelCall) -> None:
        expect = self._problems.expect
        if not expect(name in self._types, f"there is no memory {name}", call):
            return
        dtype = self._types[name]
        message = f"{name} is {type_text(dtype)}, the kernel's {parameter.name} is {type_text(parameter.dtype)}"
        expect(dtype == parameter.dtype, message, call)
        is_kept = name in self._inputs and name not in self._program.written
        expect(parameter.access == "read" or not is_kept, f"the input {name} is written", call)
        is_fresh = parameter.access != "write" and name not in self._written
        expect(not is_fresh, f"{name} is read before a call wrote it", call)

    # -- workspace ------------------------------------------------------------------------------------------------

    def _workspace(self) -> None:
        program = self._program
        check_index(program.workspace_bytes, self._scope(f"workspace {program.workspace_bytes} bytes"))
        known = True
        for piece in program.workspace:
            for expression in (piece.start, piece.size):
                check_index(expression, self._scope(piece))
                known = known and expression.free_symbols <= self._sizes
        if not known or not program.workspace_bytes.free_symbols <= self._sizes:
            return
        for values in _samples(self._sizes):
            self._places(values)

    def _places(self, values: dict[sympy.Symbol, int]) -> None:
        """Check positions for given sizes."""
        program, expect = self._program, self._problems.expect
        at = {item.name: (_number(item.start, values), _number(item.size, values)) for item in program.workspace}
        total = _number(program.workspace_bytes, values)
        for item in program.workspace:
            start, size = at[item.name]
            expect(start % _ALIGNMENT == 0, f"{item.name} does not start at a multiple of {_ALIGNMENT}", item)
            expect(start >= 0 and start + size <= total, f"{item.name} is not inside the workspace", item)
        for first, second in self._concurrent():
            (a, a_size), (b, b_size) = at[first.name], at[second.name]
            apart = a + a_size <= b or b + b_size <= a or min(a_size, b_size) == 0
            expect(apart, f"{first.name} and {second.name} overlap, and live at one time", f"{first}\n{second}")

    def _concurrent(self) -> Iterator[tuple[WorkspaceBuffer, WorkspaceBuffer]]:
        """Pairs of pieces that hold values at one time."""
        uses: dict[str, list[int]] = {}
        for place, call in enumerate(self._program.calls):
            for name in call.buffers:
                uses.setdefault(name, []).append(place)
        pieces = [item for item in self._program.workspace if item.name in uses]
        for index, first in enumerate(pieces):
            for second in pieces[index + 1 :]:
                starts, ends = _ends(uses[first.name], uses[second.name])
                if starts <= ends:
                    yield first, second


def _ends(first: Iterable[int], second: Iterable[int]) -> tuple[int, int]:
    """Later start and earlier end of two lifetimes."""
    first, second = list(first), list(second)
    return max(first[0], second[0]), min(first[-1], second[-1])


def _samples(symbols: Iterable[sympy.Symbol]) -> Iterator[dict[sympy.Symbol, int]]:
    ordered = sorted(symbols, key=str)
    for start, step in _SAMPLES if ordered else _SAMPLES[:1]:
        yield {symbol: start + step * place for place, symbol in enumerate(ordered)}


def _number(expression: sympy.Expr, values: dict[sympy.Symbol, int]) -> int:
    return int(expression.subs(values))
