"""Numpy as a target: what the scheduler has to know, compiling (``exec``), launching; the backend that offers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.ir.stages import AliasOutput, StridedInput
from mixbackend.backends.codegen.targets.target import CompiledProgram, Launch, Target, TargetTraits
from mixbackend.contracts import Availability
from mixbackend_numpy import operators
from mixbackend_numpy.printer import NUMPY_TYPES, print_kernel

Function = Callable[[list[Any], Sequence[int], Sequence[float]], None]


class NumpyTarget(Target):
    """Kernels as Python functions on flat arrays."""

    name: ClassVar[str] = "numpy"

    def availability(self) -> Availability:
        return Availability(True, version=np.__version__)

    def fingerprint(self) -> str:
        return f"numpy {np.__version__}"

    def traits(self) -> TargetTraits:
        return TargetTraits(
            device_type="cpu",
            vector_bytes=64,
            scratch_bytes=1 << 18,
            parallel_width=1,
            atomic=False,
            dtypes=frozenset(NUMPY_TYPES),
        )

    def compile(self, program: Program) -> CompiledProgram:
        texts = [print_kernel(kernel, f"kernel{number}") for number, kernel in enumerate(program.kernels)]
        source = "\n".join(texts)
        names: dict[str, Any] = {**vars(operators), "np": np}
        exec(compile(source, "<numpy target>", "exec"), names)  # our own text, printed from the program
        functions = {kernel: names[f"kernel{number}"] for number, kernel in enumerate(program.kernels)}
        return CompiledProgram(_launch(program, functions), source)


def _launch(program: Program, functions: dict[Any, Function]) -> Launch:
    names = [item.name for item in program.inputs if isinstance(item, StridedInput)]
    names += [item.name for item in program.outputs if not isinstance(item, AliasOutput)]

    def launch(memory: Sequence[torch.Tensor], parameters: Sequence[int], numbers: Sequence[float]) -> None:
        arrays = {name: _flat(tensor) for name, tensor in zip(names, memory[:-1], strict=True)}
        starts = parameters[len(parameters) - len(program.workspace) :]
        for piece, start in zip(program.workspace, starts, strict=True):
            rest = memory[-1].numpy()[start:]
            itemsize = piece.dtype.itemsize
            arrays[piece.name] = rest[: rest.size // itemsize * itemsize].view(getattr(np, NUMPY_TYPES[piece.dtype]))
        place = number = 0
        with np.errstate(all="ignore"):
            for call in program.calls:
                given = parameters[place : place + len(call.parameters)]
                floats = numbers[number : number + len(call.numbers)]
                functions[call.kernel]([arrays[name] for name in call.buffers], given, floats)
                place, number = place + len(call.parameters), number + len(call.numbers)

    return launch


def _flat(tensor: torch.Tensor) -> Any:
    """All memory of a tensor from its first element on, as one dimension."""
    if not tensor.numel():
        return tensor.detach().reshape(-1).numpy()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((span,), (1,)).numpy()


class NumpyBackend(CodegenBackend):
    """The code generator with this target: slow, but right."""

    name: ClassVar[str] = "numpy"
    contract_version: ClassVar[str] = "1.0"

    def __init__(self) -> None:
        super().__init__(NumpyTarget())
