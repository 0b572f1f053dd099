"""The C++ target for AArch64 from another machine: compiled by a cross compiler, run by an emulator where there is one.

Place: where ``CppTarget`` stands in front of this machine's compiler. Input: programs. Output: an executable for each,
of the printed kernels, the launcher as it is shipped, and a ``main`` that reads memory from a file and writes it back.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch

from mixbackend.backends.codegen.call_table import CallTable
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.ir.stages import Stage
from mixbackend.backends.codegen.targets.cpp.build import MODULE_HEAD, PLACEHOLDER, Toolchain
from mixbackend.backends.codegen.targets.cpp.features import machine_features
from mixbackend.backends.codegen.targets.cpp.launcher import LAUNCHER_TEXT
from mixbackend.backends.codegen.targets.cpp.printer import print_any_kernel
from mixbackend.backends.codegen.targets.cpp.target import CppTarget
from mixbackend.backends.codegen.targets.target import CompiledProgram, Target, TargetTraits
from mixbackend.backends.common.compiler import Compiler
from mixbackend.contracts import Availability

EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")

_MAIN = """
#include <stdio.h>
#include <stdlib.h>
static i64 number(FILE* file) { i64 value; if (fread(&value, 8, 1, file) != 1) abort(); return value; }
static char* block(FILE* file, i64* bytes) {
    *bytes = number(file);
    char* memory = static_cast<char*>(aligned_alloc(128, (*bytes + 255) / 128 * 128));
    if (fread(memory, 1, *bytes, file) != static_cast<size_t>(*bytes)) abort();
    return memory;
}
int main(int, char** arguments) {
    FILE* file = fopen(arguments[1], "rb+");
    i64 bytes[TENSORS + 3];
    char* addresses[TENSORS + 1];
    for (i64 place = 0; place <= TENSORS; ++place) addresses[place] = block(file, &bytes[place]);
    const i64* parameters = reinterpret_cast<i64*>(block(file, &bytes[TENSORS + 1]));
    const double* numbers = reinterpret_cast<double*>(block(file, &bytes[TENSORS + 2]));
    const Program program = {CALLS, TENSORS, calls, slots, parameters + bytes[TENSORS + 1] / 8 - PIECES, parameters,
                             numbers, TELLING};
    const int told = run_program(&program, addresses);
    rewind(file);
    for (i64 place = 0; place <= TENSORS; ++place) {
        fseek(file, 8, SEEK_CUR);
        fwrite(addresses[place], 1, bytes[place], file);
    }
    return fclose(file) || told;
}
"""


def cross_compilers() -> Iterator[tuple[str, ...]]:
    """Commands of those that are here, for programs that need no other file."""
    if found := shutil.which("aarch64-linux-gnu-g++"):
        yield (found,)
    if importlib.util.find_spec("ziglang"):
        yield (sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl")


def toolchain(command: Sequence[str], *options: str) -> Toolchain:
    """That of a machine whose compiler, asked for this machine, would choose these options."""
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    compiler = Compiler((*command, *options), version.splitlines()[0])
    return Toolchain(compiler, machine_features(compiler), not compiler.is_clang, Path())


class CrossTarget(Target):
    """See the module's docstring.

    Args:
        toolchain: whose compiler makes programs for AArch64.
        folder: for what it makes.
    """

    name: ClassVar[str] = "cross"

    def __init__(self, toolchain: Toolchain, folder: Path) -> None:
        self._toolchain = toolchain
        self._folder = folder
        self.sources: list[str] = []

    def availability(self) -> Availability:
        return Availability(True)

    def fingerprint(self) -> str:
        return self._toolchain.digest

    def traits(self) -> TargetTraits:
        return replace(CppTarget().traits(), vector_bytes=self._toolchain.features.vector_bytes, parallel_width=2)

    def objection(self, stage: Stage) -> str | None:
        return CppTarget().objection(stage)

    def compile(self, program: Program) -> CompiledProgram:
        kernels = [print_any_kernel(kernel, PLACEHOLDER) for kernel in program.kernels]
        text = _source(kernels, program.call_table)
        self.sources.append(text)
        executable = self._folder / f"program{len(self.sources)}"
        self.compiler(text, "-static", "-o", str(executable))

        def launch(memory: Sequence[torch.Tensor], parameters: Sequence[int], numbers: Sequence[float]) -> None:
            _emulate(executable, memory, parameters, numbers)

        return CompiledProgram(launch, text)

    def compiler(self, text: str, *options: str) -> None:
        """Runs the compiler with the flags of kernels, but for a program."""
        flags = [flag for flag in self._toolchain.flags if flag != "-shared"]
        command = [*self._toolchain.compiler.command, *flags, "-x", "c++", "-", "-lm", *options]
        finished = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, f"{finished.stderr[:4000]}\n{text}"


def _source(kernels: Sequence[str], table: CallTable) -> str:
    named = [text.replace(PLACEHOLDER, f"kernel{place}") for place, text in enumerate(kernels)]
    calls, slots, parameters, numbers = [], list[int](), 0, 0
    for call in table.calls:
        calls.append(f"{{kernel{call.kernel}, {len(slots)}, {len(call.slots)}, {parameters}, {numbers}}}")
        slots += call.slots
        parameters += call.parameter_count
        numbers += call.number_count
    telling = len(calls) if table.telling is None else table.telling
    sizes = {"TENSORS": table.tensor_count, "CALLS": len(calls), "PIECES": len(table.pieces), "TELLING": telling}
    return "\n".join(
        [
            *(MODULE_HEAD, *named, LAUNCHER_TEXT.replace(PLACEHOLDER, "run_program")),
            *(f"constexpr i64 {name} = {value};" for name, value in sizes.items()),
            f"static const Call calls[] = {{{', '.join(calls)}}};",
            f"static const i64 slots[] = {{{', '.join(map(str, slots))}}};",
            _MAIN,
        ]
    )


def _emulate(executable: Path, memory: Sequence[torch.Tensor], sizes: Sequence[int], numbers: Sequence[float]) -> None:
    """Run it on a copy of the memory, and take over what it leaves there."""
    assert EMULATOR is not None, "nothing here runs programs for AArch64"
    spans = [item.untyped_storage().nbytes() - item.storage_offset() * item.element_size() for item in memory]
    blocks = [ctypes.string_at(item.data_ptr(), span) for item, span in zip(memory, spans, strict=True)]
    blocks += [struct.pack(f"={len(sizes)}q", *sizes), struct.pack(f"={len(numbers)}d", *numbers)]
    file = executable.with_suffix(".memory")
    file.write_bytes(b"".join(struct.pack("=q", len(block)) + block for block in blocks))
    subprocess.run([EMULATOR, "-cpu", "max", str(executable), str(file)], check=True, timeout=200)
    left, start = file.read_bytes(), 0
    for item, span in zip(memory, spans, strict=True):
        ctypes.memmove(item.data_ptr(), left[start + 8 : start + 8 + span], span)
        start += 8 + span
