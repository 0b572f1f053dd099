"""Programs of the table as text, for a GPU that need not be here."""

from __future__ import annotations

from dataclasses import replace

import torch
from triton_cases import CASES, inputs_of

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.targets.target import TargetTraits
from mixbackend.backends.codegen.targets.triton.compiler import Architecture
from mixbackend.backends.codegen.targets.triton.limits import Settings
from mixbackend.backends.codegen.targets.triton.printing import Printed, print_program
from mixbackend.backends.codegen.targets.triton.target import Hardware, TritonTarget
from mixbackend.contracts import Availability
from mixbackend.graph.trace import trace_region

HARDWARE = Hardware(Architecture("cuda", "90", 32), 132)
SETTINGS = Settings(HARDWARE.units, HARDWARE.shared)


class PrintingTarget(TritonTarget):
    """The target for tensors in ordinary memory: as far as text."""

    def __init__(self) -> None:
        super().__init__(HARDWARE)

    def availability(self) -> Availability:
        return Availability(True, version="text")

    def traits(self) -> TargetTraits:
        return replace(super().traits(), device_type="cpu")


def backend() -> CodegenBackend:
    """The code generator with that target."""
    return CodegenBackend(PrintingTarget())


def program_of(name: str, dtype: torch.dtype) -> Program:
    """The program of a case."""
    region = trace_region(CASES[name].function, inputs_of(name, dtype), dynamic=CASES[name].dynamic)
    return backend().program(region)


def printed(name: str, dtype: torch.dtype) -> Printed:
    """The text of a case."""
    return print_program(program_of(name, dtype), SETTINGS)
