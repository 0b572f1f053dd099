"""What a program computes from constants alone, taken out of it: done once when a region is bound.

Place: between ``schedule`` and the target, for regions with constant inputs.
Input: a program and the names of its constant inputs. Output: a program that computes values of them, and the rest,
which takes these values as further inputs.
Only whole kernels move, those that write nothing but the workspace and have memory of known sizes: copies of weights in
the order in which kernels read them.
Invariants: the two programs one after the other do what the program did. The kernels are the same, and compile once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import sympy

from mixbackend.backends.codegen.ir.program import KernelCall, OutputBuffer, Program
from mixbackend.backends.codegen.ir.stages import StridedInput, TensorType
from mixbackend.backends.codegen.schedule.memory import Usage, plan_workspace


@dataclass(frozen=True)
class PreparedProgram:
    """See the module's docstring.

    Attributes:
        first: takes some of the constants, and returns the prepared values.
        places: of the inputs of ``first`` among the inputs of the whole program.
        rest: takes all inputs of the whole program, then the prepared values.
    """

    first: Program
    places: tuple[int, ...]
    rest: Program


def prepare(program: Program, constants: frozenset[str]) -> PreparedProgram | None:
    """Take a program apart; ``None`` if no kernel reads constants alone, or random numbers are drawn: that is training.

    Args:
        constants: names of inputs with values that are known when the region is bound.
    """
    calls = _constant_calls(program, constants)
    if not calls or program.draws != 0:
        return None
    pieces = {piece.name: piece for piece in program.workspace}
    made = [name for call in calls for name in _written(call)]
    read = {name for call in calls for name in call.buffers}
    outputs, inputs = [], []
    for name in made:
        size = sympy.Integer(int(pieces[name].size) // pieces[name].dtype.itemsize)
        outputs.append(OutputBuffer(name, pieces[name].dtype, (size,), (sympy.Integer(1),)))
        inputs.append(StridedInput(name, TensorType((size,), pieces[name].dtype), (sympy.Integer(1),)))
    places = tuple(place for place, item in enumerate(program.inputs) if item.name in read)
    zero = sympy.Integer(0)
    first = Program(tuple(program.inputs[place] for place in places), tuple(outputs), (), zero, tuple(calls))
    left = tuple(call for call in program.calls if call not in calls)
    rest = _planned_anew(replace(program, inputs=(*program.inputs, *inputs), calls=left))
    return PreparedProgram(first, places, rest)


def _planned_anew(program: Program) -> Program:
    """Without the memory of what is no longer computed: what is small is then near what is in the caches."""
    given = {item.name for item in program.inputs}
    sizes = {piece.name: (piece.dtype, piece.size) for piece in program.workspace if piece.name not in given}
    usages = [Usage.of(access for call in together for access in _accesses(call)) for together in program.launches]
    workspace, total = plan_workspace(usages, sizes)
    return replace(program, workspace=workspace, workspace_bytes=total)


def _constant_calls(program: Program, constants: frozenset[str]) -> list[KernelCall]:
    """Calls that read constants, and what such calls made, into pieces that nothing else writes."""
    sizes = {piece.name: piece.size for piece in program.workspace}
    writers = [name for call in program.calls for name in _written(call)]
    known = constants - set(program.written)
    found = []
    for call in program.calls:
        written = _written(call)
        values = (*call.parameters, *(sizes.get(name, sympy.nan) for name in written))
        fixed = not call.numbers and all(sympy.sympify(value).is_Integer for value in values)
        if fixed and set(call.buffers) - set(written) <= known and all(writers.count(name) == 1 for name in written):
            found.append(call)
            known |= set(written)
    return found


def _written(call: KernelCall) -> tuple[str, ...]:
    return tuple(name for name, access in _accesses(call) if access != "read")


def _accesses(call: KernelCall) -> Iterator[tuple[str, str]]:
    """Names of tensors, and how they are used."""
    for name, buffer in zip(call.buffers, call.kernel.buffers, strict=True):
        yield name, buffer.access
