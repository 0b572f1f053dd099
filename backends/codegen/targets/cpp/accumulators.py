"""Registers that reductions fold into.

Place: used by the printer of reductions. Several sets of registers take turns, so that one addition need not wait for
the last: the copies of a vector loop over reduced points fold into one result (``across``), the copies of a vector loop
over kept points have results of their own.
Invariants: long floating sums and statistics are taken in blocks: partial results of a block are added to a total in
float64, so no rounding error grows with the length. Lanes out of use fold the identity.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from mixbackend.backends.codegen.ir.kernel import Accumulate
from mixbackend.backends.codegen.targets.cpp.literals import (
    compute_type,
    highest,
    literal,
    lowest,
    vector_type,
)


@dataclass(frozen=True)
class Shape:
    """How a reduction is printed.

    Attributes:
        vector: whether folded values are vectors.
        across: whether lanes and copies are folded into one.
        copies: sets of registers.
        blocked: whether blocks are added to totals.
        one_block: condition under which all values were one block, which was added to no total; empty if there is
            none.
    """

    vector: bool
    across: bool
    copies: int
    blocked: bool
    one_block: str = ""

    @property
    def results(self) -> int:
        """Copies that results differ between."""
        return 1 if self.across else self.copies


class Accumulator(ABC):
    """Prints one ``Accumulate``."""

    def __init__(self, statement: Accumulate, name: str, shape: Shape) -> None:
        self.statement = statement
        self.name = name
        self.shape = shape
        self.dtype = statement.value.dtype

    @abstractmethod
    def declare(self) -> list[str]:
        """Before the reduced loops."""

    @abstractmethod
    def update(self, copy: int, value: str, position: str, active: str) -> list[str]:
        """Fold a value in.

        Args:
            copy: of the statements.
            value: a vector or scalar, as ``shape`` says.
            position: where it is, for positions of extremes.
            active: mask of the lanes in use, empty for all.
        """

    def flush(self) -> list[str]:
        """At the end of a block."""
        return []

    @abstractmethod
    def finish(self, copy: int) -> tuple[list[str], list[tuple[str, torch.dtype]]]:
        """After the loops: lines, then text and type of each result."""

    def registers(self, copy: int) -> str:
        """Name of a set."""
        return f"{self.name}_{copy}"


class Fold(Accumulator):
    """One value folded by an associative function."""

    def __init__(self, statement: Accumulate, name: str, shape: Shape) -> None:
        super().__init__(statement, name, shape)
        kind = statement.kind
        self.kind = {"max": "any", "min": "all"}.get(kind, kind) if self.dtype == torch.bool else kind
        self.function = _FUNCTIONS[self.kind]
        self.identity = _identity(self.kind, self.dtype)
        self.has_total = shape.blocked and needs_blocks(statement)

    def declare(self) -> list[str]:
        kind = vector_type(self.dtype) if self.shape.vector else compute_type(self.dtype)
        lines = [f"{kind} {self.registers(copy)} = {self._start()};" for copy in range(self.shape.copies)]
        if self.has_total:
            total = "Vec<double>" if self.shape.vector else "double"
            start = "broadcast<double>(0)" if self.shape.vector else "0"
            lines += [f"{total} {self._total(copy)} = {start};" for copy in range(self.shape.results)]
        return lines

    def update(self, copy: int, value: str, position: str, active: str) -> list[str]:
        name = self.registers(copy)
        if active:
            value = f"select({active}, {value}, {self._start()})"
        # The value comes first: extremes look at their first argument twice, and the result waits for the second only.
        return [f"{name} = {self.function}({value}, {name});"]

    def flush(self) -> list[str]:
        if not self.has_total:
            return []
        totals = [f"{self._total(copy)} = {self._sum(copy)};" for copy in range(self.shape.results)]
        return totals + [f"{self.registers(copy)} = {self._start()};" for copy in range(self.shape.copies)]

    def finish(self, copy: int) -> tuple[list[str], list[tuple[str, torch.dtype]]]:
        text = self._across(self._folded(copy))
        if self.has_total:
            total = f"convert<{compute_type(self.dtype)}>({self._across(self._sum(copy))})"
            text = f"{self.shape.one_block} ? {text} : {total}" if self.shape.one_block else total
        return [], [(text, self.dtype)]

    def _across(self, text: str) -> str:
        return f"{_HORIZONTAL[self.kind]}({text})" if self.shape.across else text

    def _sum(self, copy: int) -> str:
        """The total with the last block."""
        return f"add({self._total(copy)}, convert<double>({self._folded(copy)}))"

    def _folded(self, copy: int) -> str:
        """A result's registers as one, pairwise."""
        if not self.shape.across:
            return self.registers(copy)
        return in_pairs(self.function, [self.registers(number) for number in range(self.shape.copies)])

    def _start(self) -> str:
        if not self.shape.vector:
            return self.identity
        if self.dtype == torch.bool:
            return f"broadcast_mask({self.identity})"
        return f"broadcast<{compute_type(self.dtype)}>({self.identity})"

    def _total(self, copy: int) -> str:
        return f"{self.name}_total_{copy}"


class Statistics(Accumulator):
    """Mean and sum of squared distances from it: in float64, but for blocks of vectors."""

    def declare(self) -> list[str]:
        if not self.shape.vector:
            return [f"WelfordScalar<double> {self._total(0)};"]
        kind = f"BlockStatistics<{compute_type(self.dtype)}>"
        lines = [f"{kind} {self.registers(copy)};" for copy in range(self.shape.copies)]
        return lines + [f"WelfordVec<double> {self._total(copy)};" for copy in range(self.shape.results)]

    def update(self, copy: int, value: str, position: str, active: str) -> list[str]:
        name = self.registers(copy) if self.shape.vector else self._total(0)
        return [f"{name}.add_masked({value}, {active});" if active else f"{name}.add({value});"]

    def flush(self) -> list[str]:
        return [*self._combined(), *(f"{name} = {{}};" for name in self._blocks())]

    def finish(self, copy: int) -> tuple[list[str], list[tuple[str, torch.dtype]]]:
        lines = self._combined() if copy == 0 else []
        name = f"{self.name}_result_{copy}"
        whole = f"{self._total(copy)}.total()" if self.shape.across else self._total(copy)
        lines.append(f"const auto {name} = {whole}.finish();")
        target = compute_type(self.dtype)
        return lines, [(f"convert<{target}>({name}.{part})", self.dtype) for part in ("mean", "squares")]

    def _combined(self) -> list[str]:
        blocks = self._blocks()
        if self.shape.across and blocks:
            blocks = [in_pairs("merged", blocks)]
        return [f"add_block({self._total(copy)}, {block});" for copy, block in enumerate(blocks)]

    def _blocks(self) -> list[str]:
        return [self.registers(copy) for copy in range(self.shape.copies)] if self.shape.vector else []

    def _total(self, copy: int) -> str:
        return f"{self.name}_total_{copy}"


class Position(Accumulator):
    """Where the extreme is."""

    def declare(self) -> list[str]:
        vector = "Vec" if self.shape.vector else ""
        is_max = "true" if self.statement.kind == "argmax" else "false"
        kind = f"ArgBest{vector}<{compute_type(self.dtype)}, {is_max}>"
        return [f"{kind} {self.registers(copy)};" for copy in range(self.shape.copies)]

    def update(self, copy: int, value: str, position: str, active: str) -> list[str]:
        name = self.registers(copy)
        if active:
            return [f"{name}.add_masked({value}, {position}, {active});"]
        return [f"{name}.add({value}, {position});"]

    def finish(self, copy: int) -> tuple[list[str], list[tuple[str, torch.dtype]]]:
        if not self.shape.across:
            return [], [(f"{self.registers(copy)}.position", torch.int64)]
        best = in_pairs("better", [self.registers(number) for number in range(self.shape.copies)])
        return [], [(f"first_position({best})", torch.int64)]


def in_pairs(function: str, names: list[str]) -> str:
    """A power of two of values folded by a function."""
    while len(names) > 1:
        pairs = zip(names[::2], names[1::2], strict=True)
        names = [f"{function}({first}, {second})" for first, second in pairs]
    return names[0]


def make_accumulator(statement: Accumulate, name: str, shape: Shape) -> Accumulator:
    """The printer of an ``Accumulate``."""
    if statement.kind == "welford":
        return Statistics(statement, name, shape)
    if statement.kind in ("argmax", "argmin"):
        return Position(statement, name, shape)
    return Fold(statement, name, shape)


def needs_blocks(statement: Accumulate) -> bool:
    """Whether rounding errors would grow with the number of values."""
    return statement.kind in ("sum", "welford") and statement.value.dtype.is_floating_point


def _identity(kind: str, dtype: torch.dtype) -> str:
    if kind == "max":
        return lowest(dtype)
    if kind == "min":
        return highest(dtype)
    return literal({"sum": 0, "prod": 1, "any": False, "all": True}[kind], dtype)


_FUNCTIONS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or_", "all": "and_"}
_HORIZONTAL = {
    "sum": "reduce_sum",
    "prod": "reduce_prod",
    "max": "reduce_max",
    "min": "reduce_min",
    "any": "reduce_any",
    "all": "reduce_all",
}
