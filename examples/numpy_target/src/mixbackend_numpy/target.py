"""Numpy as a target: what the scheduler has to know, compiling (``exec``), launching; the backend that offers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.call_table import CallTable
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.targets.target import CompiledProgram, Launch, Target, TargetTraits
from mixbackend.contracts import Availability
from mixbackend_numpy import operators
from mixbackend_numpy.printer import NUMPY_TYPES, PRINTER_VERSION, print_kernel

Function = Callable[[list[Any], Sequence[int], Sequence[float]], None]


class NumpyTarget(Target):
    """Kernels as Python functions on flat arrays."""

    name: ClassVar[str] = "numpy"

    def availability(self) -> Availability:
        return Availability(True, version=np.__version__)

    def fingerprint(self) -> str:
        return f"numpy {np.__version__}, printer {PRINTER_VERSION}"

    def traits(self) -> TargetTraits:
        return TargetTraits(
            device_type="cpu",
            vector_bytes=64,
            scratch_bytes=1 << 18,
            parallel_width=1,
            dtypes=frozenset(NUMPY_TYPES),
        )

    def compile(self, program: Program) -> CompiledProgram:
        texts = [print_kernel(kernel, f"kernel{number}") for number, kernel in enumerate(program.kernels)]
        return self.load(program.call_table, "\n".join(texts).encode())

    def load(self, calls: CallTable, artifact: bytes) -> CompiledProgram:
        source = artifact.decode()
        names: dict[str, Any] = {**vars(operators), "np": np}
        exec(compile(source, "<numpy target>", "exec"), names)  # our own text, printed from a program
        functions = [names[f"kernel{number}"] for number in range(calls.kernel_count)]
        return CompiledProgram(_launch(calls, functions), source, artifact)


def _launch(table: CallTable, functions: Sequence[Function]) -> Launch:
    types = [getattr(np, NUMPY_TYPES[dtype]) for dtype in table.pieces]

    def launch(memory: Sequence[torch.Tensor], parameters: Sequence[int], numbers: Sequence[float]) -> None:
        arrays = [_flat(tensor) for tensor in memory[:-1]]
        for dtype, start in zip(types, parameters[len(parameters) - len(types) :], strict=True):
            rest = memory[-1].numpy()[start:]
            itemsize = np.dtype(dtype).itemsize
            arrays.append(rest[: rest.size // itemsize * itemsize].view(dtype))
        place = number = 0
        with np.errstate(all="ignore"):
            for call in table.calls:
                given = parameters[place : place + call.parameter_count]
                floats = numbers[number : number + call.number_count]
                functions[call.kernel]([arrays[slot] for slot in call.slots], given, floats)
                place, number = place + call.parameter_count, number + call.number_count

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
