"""Compile printed kernels without the target's build, run them, and run the interpreter on the same memory."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import sympy
import torch
from team_calls import call_kernel

import mixbackend.backends.codegen.targets.cpp as cpp
from mixbackend.backends.codegen.interpret.kernels import interpret_kernel
from mixbackend.backends.codegen.ir.kernel import AnyKernel, Kernel
from mixbackend.backends.codegen.targets.cpp.build import MODULE_HEAD
from mixbackend.backends.codegen.targets.cpp.printer import print_any_kernel

COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
HEADERS = Path(cpp.__file__).parent


def print_module(kernels: Iterable[tuple[str, AnyKernel]]) -> str:
    """A translation unit with a function for each kernel, by name."""
    return "\n".join([MODULE_HEAD, *(print_any_kernel(kernel, name) for name, kernel in kernels)])


class Library:
    """Kernels compiled for one vector width."""

    def __init__(self, kernels: Mapping[str, Kernel], folder: Path, vector_bytes: int) -> None:
        assert COMPILER is not None, "these tests need a C++ compiler"
        self.kernels = kernels
        source, library = folder / f"kernels{vector_bytes}.cpp", folder / f"kernels{vector_bytes}.so"
        source.write_text(print_module(kernels.items()))
        command = [
            COMPILER,
            "-std=c++17",
            "-O1",
            "-march=native",
            "-fwrapv",
            "-Wno-psabi",
            f"-DMB_VECTOR_BYTES={vector_bytes}",
        ]
        command += ["-shared", "-fPIC", f"-I{HEADERS}", str(source), "-o", str(library)]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, f"{finished.stderr}\n{source.read_text()}"
        self._library = ctypes.CDLL(str(library))

    def run(
        self, name: str, buffers: Mapping[str, torch.Tensor], parameters: Sequence[int], numbers: Sequence[float]
    ) -> None:
        """Call a kernel on flat memory."""
        kernel = self.kernels[name]
        call_kernel(getattr(self._library, name), [buffers[item.name] for item in kernel.buffers], parameters, numbers)


def interpreted(
    kernel: Kernel, buffers: Mapping[str, torch.Tensor], parameters: Sequence[int], numbers: Sequence[float] = ()
) -> dict[str, torch.Tensor]:
    """What the interpreter leaves in a copy of the memory."""
    memory = {name: value.clone() for name, value in buffers.items()}
    sizes = dict(zip(kernel.parameters, parameters, strict=True))
    interpret_kernel(kernel, memory, sizes, dict(zip(kernel.numbers, numbers, strict=True)))
    return memory


def index(number: int) -> sympy.Symbol:
    """A loop index."""
    return sympy.Symbol(f"i{number}", integer=True, nonnegative=True)


def parameter(number: int) -> sympy.Symbol:
    """A size."""
    return sympy.Symbol(f"p{number}", integer=True, positive=True)
