"""A program: kernels in order, the memory between them, and what goes in and out.

Place: the result of ``schedule``; a target compiles its kernels, ``runner`` allocates and calls.
Invariants: kernels run in order; workspace pieces that live at the same time do not overlap; outputs are fresh memory,
disjoint from everything else; inputs are only read, but for those in ``written``. Calls that write into these come
after all that tell of values out of range.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from mixbackend.backends.codegen.call_table import CallTable, TabledCall
from mixbackend.backends.codegen.ir.kernel import AnyKernel
from mixbackend.backends.codegen.ir.printed import Printed
from mixbackend.backends.codegen.ir.scalar import is_checked
from mixbackend.backends.codegen.ir.stages import AliasOutput, NumberInput, StridedInput


@dataclass(frozen=True, slots=True)
class OutputBuffer(Printed):
    """Fresh memory for one output.

    Attributes:
        name: of the tensor, as calls name it.
        dtype, sizes, strides: as it is returned.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]


@dataclass(frozen=True, slots=True)
class WorkspaceBuffer(Printed):
    """A piece of the workspace: ``start`` and ``size`` in bytes; starts are multiples of 64."""

    name: str
    dtype: torch.dtype
    start: sympy.Expr
    size: sympy.Expr


@dataclass(frozen=True)
class KernelCall(Printed):
    """One call.

    Attributes:
        kernel: what is called; equal kernels are compiled once.
        buffers: name of an input, output or workspace buffer for each of the kernel's buffers.
        parameters: value of each of the kernel's parameters, over the program's number inputs.
        numbers: input symbol for each of the kernel's numbers.
        origins: graph nodes computed, for people.
        launch: neighbours of one number touch nothing that another of them writes, and may run at once; ``None`` for a
            call that is alone, as are all with parameters that depend on sizes.
    """

    kernel: AnyKernel
    buffers: tuple[str, ...]
    parameters: tuple[sympy.Expr, ...]
    numbers: tuple[sympy.Symbol, ...] = ()
    origins: tuple[str, ...] = ()
    launch: int | None = None

    def writes(self, names: frozenset[str]) -> bool:
        """Whether it writes into some of this memory."""
        pairs = zip(self.kernel.buffers, self.buffers, strict=False)
        return any(name in names for parameter, name in pairs if parameter.access != "read")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two stages were not fused, or a tensor not inlined: kept for the report and for people."""

    first: str
    second: str
    reason: str

    def __str__(self) -> str:
        return f"{self.first} and {self.second}: {self.reason}"


@dataclass(frozen=True)
class Program(Printed):
    """See the module's docstring.

    Attributes:
        inputs: of the region, in order.
        outputs: of the region, in order.
        workspace: memory for what is neither; ``workspace_bytes`` is all of it.
        calls: in order.
        refusals: see ``Refusal``.
        written: names of the inputs that calls write into.
        draws: as of a ``StageGraph``: the state of torch's generator is the last two inputs where it is not zero.
    """

    inputs: tuple[StridedInput | NumberInput, ...]
    outputs: tuple[OutputBuffer | AliasOutput, ...]
    workspace: tuple[WorkspaceBuffer, ...]
    workspace_bytes: sympy.Expr
    calls: tuple[KernelCall, ...]
    refusals: tuple[Refusal, ...] = ()
    written: tuple[str, ...] = ()
    draws: sympy.Expr = sympy.S.Zero

    @property
    def kernels(self) -> tuple[AnyKernel, ...]:
        """Distinct kernels in order of first use."""
        return tuple(dict.fromkeys(call.kernel for call in self.calls))

    @property
    def launches(self) -> tuple[tuple[KernelCall, ...], ...]:
        """Calls that may run at once, in order."""
        made: list[list[KernelCall]] = []
        for call in self.calls:
            if made and call.launch is not None and made[-1][-1].launch == call.launch:
                made[-1].append(call)
            else:
                made.append([call])
        return tuple(map(tuple, made))

    @property
    def call_table(self) -> CallTable:
        """How the kernels are called, without the kernels: calls that may run at once are one, under the first's."""
        tensors = [item.name for item in self.inputs if isinstance(item, StridedInput)]
        tensors += [item.name for item in self.outputs if isinstance(item, OutputBuffer)]
        slot_of = {name: slot for slot, name in enumerate([*tensors, *(piece.name for piece in self.workspace)])}
        kernels = self.kernels
        place_of = {kernel: place for place, kernel in enumerate(kernels)}
        calls = tuple(
            TabledCall(
                place_of[together[0].kernel],
                tuple(slot_of[name] for call in together for name in call.buffers),
                sum(len(call.parameters) for call in together),
                sum(len(call.numbers) for call in together),
            )
            for together in self.launches
        )
        pieces = tuple(piece.dtype for piece in self.workspace)
        return CallTable(len(kernels), len(tensors), pieces, calls, self._telling())

    def _telling(self) -> int | None:
        """See ``CallTable.telling``."""
        launches = self.launches
        if not is_checked(*self.kernels):
            return None
        written = frozenset(self.written)
        writing = (place for place, together in enumerate(launches) if any(call.writes(written) for call in together))
        return next(writing, len(launches))
