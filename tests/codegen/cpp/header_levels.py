"""Compiling pieces of C++ against the headers, for every width of vector that this machine can run."""

from __future__ import annotations

import ctypes
import platform
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from printed_kernels import print_module

from mixbackend.backends.codegen.ir.kernel import AnyKernel
from mixbackend.backends.codegen.targets.cpp.build import Toolchain, compile_object
from mixbackend.backends.codegen.targets.cpp.features import Features, machine_features
from mixbackend.backends.common.compiler import find_compiler

C_NAMES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}


def levels() -> list[Features]:
    """The machine's own features, and on x86 the narrower ones that other machines have."""
    own = machine_features(find_compiler())
    if platform.machine() not in ("x86_64", "AMD64"):
        return [own]
    narrow = [
        Features(32, ("-march=x86-64-v2", "-mavx2", "-mfma", "-mf16c"), "avx2"),
        Features(16, ("-march=x86-64-v2",), "sse"),
    ]
    return [own, *(level for level in narrow if level.vector_bytes < own.vector_bytes)]


def level_name(features: Features) -> str:
    return f"{features.vector_bytes}bytes"


@cache
def compiled(source: str, features: Features) -> ctypes.CDLL:
    """A library of the functions in ``source``, which sees the headers and is inside ``extern "C"``."""
    text = f'#include "vector.hpp"\nusing namespace mb;\nextern "C" {{\n{source}\n}}\n'
    toolchain = Toolchain(find_compiler(), features, openmp=False, folder=Path(tempfile.gettempdir()))
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(compile_object(text, toolchain))
        file.flush()
        return ctypes.CDLL(file.name)


class KernelsOnDemand:
    """Printed kernels by name, each compiled when it is first asked for: a template takes a compiler a second.

    Args:
        features: of the processors they are for.
        kernel: makes the one of a name.
        folder: for their libraries.
    """

    def __init__(self, features: Features, kernel: Callable[[str], AnyKernel], folder: Path) -> None:
        self.lanes = features.vector_bytes // 4
        self._toolchain = Toolchain(find_compiler(), features, openmp=False, folder=folder)
        self._kernel = kernel
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            path = self._toolchain.folder / f"{name}.so"
            path.write_bytes(compile_object(print_module([(name, self._kernel(name))]), self._toolchain))
            self._found[name] = getattr(ctypes.CDLL(str(path)), name)
        return self._found[name]


def call(library: ctypes.CDLL, name: str, *arguments: torch.Tensor | int) -> None:
    """Call a function that takes pointers and 64-bit integers."""
    given = [
        ctypes.c_void_p(value.data_ptr()) if isinstance(value, torch.Tensor) else ctypes.c_longlong(value)
        for value in arguments
    ]
    getattr(library, name)(*given)
