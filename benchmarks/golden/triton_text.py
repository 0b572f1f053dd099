"""Regions as kernels for a GPU that need not be here, as text.

Place: used by ``worker``. Input: the dumped regions of a graph that was planned for the processor. Output: for every
region of the code generator the Triton kernels that it would be on an H100, under the plan of the model.
Invariants: nothing is compiled; a region that this target does not take is told with its refusal.
"""

from __future__ import annotations

import re
from dataclasses import replace

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.targets.target import TargetTraits
from mixbackend.backends.codegen.targets.triton.compiler import Architecture
from mixbackend.backends.codegen.targets.triton.limits import Settings
from mixbackend.backends.codegen.targets.triton.printing import print_program
from mixbackend.backends.codegen.targets.triton.target import Hardware, TritonTarget
from mixbackend.contracts import Availability, MixbackendError
from mixbackend.contracts.region_text import read_region_text

_HARDWARE = Hardware(Architecture("cuda", "90", 32), 132)
_REGION = re.compile(r"^(\S+) (\S+) (\S+)\n(mixbackend-region .*?)(?=^\S+/r\d+ |\Z)", re.MULTILINE | re.DOTALL)


class PrintingTarget(TritonTarget):
    """The target for tensors in ordinary memory: as far as text."""

    def __init__(self) -> None:
        super().__init__(_HARDWARE)

    def availability(self) -> Availability:
        return Availability(True, version="text")

    def traits(self) -> TargetTraits:
        return replace(super().traits(), device_type="cpu")


def triton_texts(regions: str) -> str:
    """Kernels of all regions of the code generator, equal regions once."""
    found = {text: id for id, backend, _, text in reversed(_REGION.findall(regions)) if backend == "codegen"}
    return "\n".join(f"# {id}\n{_kernels(text, id)}" for text, id in reversed(found.items()))


def _kernels(text: str, id: str) -> str:
    try:
        program = CodegenBackend(PrintingTarget()).program(read_region_text(text.strip() + "\n", id))
        made = print_program(program, Settings(_HARDWARE.units, _HARDWARE.shared))
    except (MixbackendError, ValueError) as error:
        # A template that the processor's target has and this one has not is found late, by the printer.
        return f"none: {type(error).__name__}: {error}"
    bodies = "\n\n".join(item.body for item in made.texts)
    return f"{bodies}\n# blocks and arguments: {made.values}; reach: {made.reach}; order: {made.places}"
