"""The Triton target without a GPU: generated text, run by Triton's interpreter on tensors in ordinary memory.

Import it in a process where ``TRITON_INTERPRET=1`` was set before Triton was imported. The device library, which the
interpreter does not have, is torch's own functions: the meaning of ``ir.scalar.SCALAR_OPS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.ir.scalar import SCALAR_OPS
from mixbackend.backends.codegen.targets.target import CompiledProgram, TargetTraits
from mixbackend.backends.codegen.targets.triton import library
from mixbackend.backends.codegen.targets.triton.compiler import Architecture, function_of
from mixbackend.backends.codegen.targets.triton.limits import Settings
from mixbackend.backends.codegen.targets.triton.printing import print_program, values_of
from mixbackend.backends.codegen.targets.triton.target import Hardware, TritonTarget
from mixbackend.contracts import Availability

HARDWARE = Hardware(Architecture("cuda", "90", 32), 132)


class InterpretedTarget(TritonTarget):
    """Programs printed for a GPU, run here."""

    def __init__(self) -> None:
        super().__init__(HARDWARE)

    def availability(self) -> Availability:
        return Availability(True, version="interpreter")

    def traits(self) -> TargetTraits:
        return replace(super().traits(), device_type="cpu")

    def compile(self, program: Program) -> CompiledProgram:
        library.libdevice = DEVICE_LIBRARY
        printed = print_program(program, Settings(HARDWARE.units))
        functions = [function_of(text.body) for text in printed.texts]
        values, table = values_of(printed), program.call_table

        def launch(memory: Sequence[torch.Tensor], parameters: Sequence[int], numbers: Sequence[float]) -> None:
            tensors = [*memory[:-1], *_pieces(memory[-1], parameters, table.pieces)]
            given, floats = iter(values(parameters)), iter(numbers)
            for call, place, count in zip(table.calls, printed.places, printed.counts, strict=True):
                blocks, *arguments = [next(given) for _ in range(count)]
                arguments += [next(floats) for _ in range(call.number_count)]
                if blocks:
                    functions[place][(blocks,)](*[tensors[slot] for slot in call.slots], *arguments)

        return CompiledProgram(launch, "\n".join(text.body for text in printed.texts))


class DrawingTarget(InterpretedTarget):
    """The same, of hardware so small that random numbers take several turns."""

    THREADS = 512

    def traits(self) -> TargetTraits:
        return replace(super().traits(), drawing_threads=self.THREADS)


def _pieces(workspace: torch.Tensor, parameters: Sequence[int], types: Sequence[torch.dtype]) -> list[torch.Tensor]:
    starts = parameters[len(parameters) - len(types) :]
    rests = [workspace[start:] for start in starts]
    whole = [rest[: rest.numel() // kind.itemsize * kind.itemsize] for rest, kind in zip(rests, types, strict=True)]
    return [piece.view(kind) for piece, kind in zip(whole, types, strict=True)]


def _elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def applied(*arguments: Any) -> Any:
        shape = max((item.handle.data.shape for item in arguments), key=len)
        tensors = [torch.from_numpy(item.handle.data.copy()) for item in arguments]
        data = function(*tensors).numpy()
        scalar = arguments[0].handle.dtype
        kind = tl.block_type(scalar.scalar, list(data.shape)) if len(shape) else arguments[0].type
        return tl.tensor(TensorHandle(data, scalar), kind)

    return applied


_NAMES = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh".split()
_NAMES += "erf erfc pow trunc fmod copysign rsqrt".split()
DEVICE_LIBRARY = SimpleNamespace(
    nearbyint=_elementwise(torch.round), **{name: _elementwise(SCALAR_OPS[name].meaning) for name in _NAMES}
)
"""In place of Triton's device library."""
