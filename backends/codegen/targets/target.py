"""The codegen contract: what hardware with a compiler for loops, but none for graphs, has to offer.

Place: below the code generator as ``contracts.Backend`` is below the planner: everything above (lowering, fusion,
layouts, memory) is shared, a target turns kernels into something callable. Offer one by a subclass of
``CodegenBackend`` with a name of its own that hands its target to the constructor, registered as any backend is.
To write a target: print ``Kernel`` (see ``ir.kernel``) in your language, compile, and return a launcher.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from mixbackend.backends.codegen.call_table import CallTable
from mixbackend.backends.codegen.ir.stages import Stage, WriteMode, is_product
from mixbackend.contracts import Availability, CodegenError

if TYPE_CHECKING:
    from mixbackend.backends.codegen.ir.program import Program

Launch = Callable[[Sequence[torch.Tensor], Sequence[int], Sequence[float]], None]
"""Runs all calls of a program in order. Takes the memory (one tensor per input tensor, then per output buffer, then one
uint8 workspace, possibly empty), the value of every parameter of every call, one call after the other, followed by the
start of every workspace buffer in bytes, and the value of every floating number of every call. The two sequences of
values are tuples: a target may recognise one that it was given before. Of a target that ``tells`` it raises an
``InputRangeError`` where a call told of something (``CallTable.telling``)."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the scheduler has to know of a target with threads that work on blocks of points, in the order they like.

    Attributes:
        resident: points of a block that registers hold; longer rows are walked through piece by piece, and what was
            computed of them is computed again.
        least_columns: neighbouring columns that a block takes at least where rows are strided.
        piece: points of a row that one block folds at least before it is cut into several.
        columns: neighbouring columns that one block keeps together.
        meeting: ways to combine updates that may meet at one element. Of updates that ``set`` it, any may win.
        beside: independent kernels of points that one launch takes at most.
    """

    resident: int
    least_columns: int
    piece: int
    columns: int
    meeting: frozenset[WriteMode]
    beside: int = 1


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """What the scheduler has to know of a target.

    Attributes:
        device_type: of the tensors it takes.
        vector_bytes: bytes of a vector register; float32 lanes are a quarter of it.
        scratch_bytes: fast private memory that one outer point may use.
        parallel_width: how many outer points should exist to keep the hardware busy.
        dtypes: storage types it can load and store.
        templates: computations of ``ir.templates`` that it has; ops that become others are not taken.
        blocks: how it works on blocks; ``None`` for loops, vectors and threads.
        drawing_threads: that torch's kernels for random numbers have at most on this hardware, where the target draws
            the same numbers (``ir.philox``); ``None`` where it does not.
        tells: whether its kernels can tell that a value was ``corrected``, and its launches raise then. Where they
            cannot, what is out of range is corrected silently.
    """

    device_type: str
    vector_bytes: int
    scratch_bytes: int
    parallel_width: int
    dtypes: frozenset[torch.dtype]
    templates: frozenset[str] = frozenset()
    blocks: Blocks | None = None
    drawing_threads: int | None = None
    tells: bool = False


@dataclass(frozen=True)
class CompiledProgram:
    """What a target makes of a program.

    Attributes:
        launch: see ``Launch``. Safe to call from several threads.
        source: generated code, for people.
        artifact: from which ``load`` rebuilds it, with the program's call table; ``None`` if the target stores nothing.
    """

    launch: Launch
    source: str = ""
    artifact: bytes | None = None


class Target(ABC):
    """One kind of hardware. Class attribute ``name`` is short, lower case and unique."""

    name: ClassVar[str]

    @abstractmethod
    def availability(self) -> Availability:
        """Whether it can compile and run here, or why not. Never raises."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Everything that changes what it would compile: compiler, flags, features of the hardware."""

    @abstractmethod
    def traits(self) -> TargetTraits:
        """What the scheduler has to know."""

    def objection(self, stage: Stage) -> str | None:
        """What of a stage it has no code for, ``None`` for nothing: ops that become such stages are not taken."""
        return "no products of matrices" if is_product(stage) else None

    @abstractmethod
    def compile(self, program: Program) -> CompiledProgram:
        """Compile all kernels of a program.

        Raises:
            CodegenError: with the kernel's text and the compiler's words.
        """

    def compile_all(self, programs: Sequence[Program]) -> list[CompiledProgram]:
        """Compile several programs; a target that compiles side by side does so for all of them at once.

        Raises:
            CodegenError: as ``compile``.
        """
        return [self.compile(program) for program in programs]

    def loading(self) -> str:
        """As ``Backend.loading``: by default, the fingerprint."""
        return self.fingerprint()

    def kit(self) -> bytes | None:
        """As ``Backend.kit``."""
        return None

    def with_kit(self, kit: bytes) -> Target:
        """As ``Backend.with_kit``.

        Raises:
            CodegenError: it makes no kits, or this is none.
        """
        raise CodegenError(f"target {self.name} makes no kits")

    def load(self, calls: CallTable, artifact: bytes) -> CompiledProgram:
        """Rebuild what ``compile`` made of the program with this call table, without the program.

        Raises:
            NotImplementedError: it stores nothing.
            CodegenError: the artifact cannot be used here.
        """
        raise NotImplementedError(f"target {self.name!r} stores no artifacts")
