"""Memory of a kernel while it is interpreted: values, and which points touched them.

Place: below ``kernels``.
Invariants: every access is checked: in range, never a value that was not written, never an element that two points
share although their order is open. So the order in which the interpreter itself runs points cannot hide a race.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from mixbackend.backends.codegen.ir.scalar import compute_dtype
from mixbackend.backends.codegen.ir.stages import WriteMode
from mixbackend.contracts import IrError

GARBAGE = 0xFF
"""Every byte of memory that was not written: NaN, or an index far out of range."""


@dataclass(frozen=True)
class Owners:
    """What makes an access: numbers of the outer point and of the nest's point, one of each per access."""

    outer: torch.Tensor
    lane: torch.Tensor

    def chosen(self, where: torch.Tensor) -> Owners:
        """Those of some accesses."""
        return Owners(self.outer[where], self.lane[where])


class Exclusive:
    """Finds elements that one party writes while another one touches them.

    Combining writes (``combines``: atomic ones, or sums in any order) may meet one another, but nothing else.
    """

    def __init__(self, elements: int) -> None:
        self._low = torch.full((elements,), torch.iinfo(torch.int64).max)
        self._high = torch.full((elements,), -1)
        self._touched = {kind: torch.zeros(elements, dtype=torch.bool) for kind in ("reads", "writes", "combines")}

    def conflicts(
        self, places: torch.Tensor, numbers: torch.Tensor, kind: Literal["reads", "writes", "combines"]
    ) -> torch.Tensor:
        """Note accesses; true where one of them meets another party's."""
        self._low.scatter_reduce_(0, places, numbers, "amin")
        self._high.scatter_reduce_(0, places, numbers, "amax")
        self._touched[kind].index_fill_(0, places, True)
        shared = self._low[places] != self._high[places]
        if not bool(shared.any()):
            return shared
        reads, writes, combines = (touched[places] for touched in self._touched.values())
        return shared & (writes | (reads & combines))


class Memory:
    """One buffer or scratch of a kernel.

    Attributes:
        name: as the kernel calls it.
        elements: of the buffer, or of one outer point's scratch.
    """

    def __init__(self, name: str, data: torch.Tensor, access: str, rows: int | None = None) -> None:
        """Take a flat tensor.

        Args:
            access: as in ``BufferParameter``.
            rows: number of outer points that have a part of their own, for scratch.
        """
        self.name = name
        self.elements = data.numel() if rows is None else data.numel() // max(rows, 1)
        self._data = data
        self._access = access
        self._private = rows is not None
        self._written = torch.full(data.shape, access == "update") if access != "read" else None
        self._outer = Exclusive(data.numel()) if access != "read" and not self._private else None
        self._lanes: Exclusive | None = None

    def start_nest(self) -> None:
        """What earlier nests did is done before: points of different nests are in order."""
        self._lanes = Exclusive(self._data.numel()) if self._access != "read" else None

    def read(self, offsets: torch.Tensor, owners: Owners) -> torch.Tensor:
        """Elements at offsets in range, in the type of the memory."""
        places = self._places(offsets, owners)
        if self._written is not None:
            self._complain(~self._written[places], places, "is read before it was written")
            self._note(places, owners, "reads", "reads")
        return self._data[places]

    def write(self, offsets: torch.Tensor, values: torch.Tensor, mode: WriteMode, atomic: bool, owners: Owners) -> None:
        """Store values at offsets in range, or combine them with what is there."""
        places = self._places(offsets, owners)
        if self._written is None:
            raise IrError(f"{self.name} is read-only, and written")
        if mode == "set":
            self._complain(_repeated(places, self._data.numel()), places, "is set twice, in no order")
            self._note(places, owners, "combines" if atomic else "writes", "writes")
            self._data[places] = values.to(self._data.dtype)
            self._written[places] = True
            return
        self._complain(~self._written[places], places, "is combined with before it was written")
        self._note(places, owners, "combines" if atomic else "writes", "combines")
        _combine(self._data, places, values, mode)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _places(self, offsets: torch.Tensor, owners: Owners) -> torch.Tensor:
        return offsets + owners.outer * self.elements if self._private else offsets

    def _note(self, places: torch.Tensor, owners: Owners, outer_kind: str, lane_kind: str) -> None:
        if self._outer is not None:
            shared = self._outer.conflicts(places, owners.outer, outer_kind)  # type: ignore[arg-type]
            self._complain(shared, places, "is written and touched by different outer points")
        if self._lanes is not None:
            shared = self._lanes.conflicts(places, owners.lane, lane_kind)  # type: ignore[arg-type]
            self._complain(shared, places, "is written and touched by different points of a nest, in no order")

    def _complain(self, wrong: torch.Tensor, places: torch.Tensor, what: str) -> None:
        if bool(wrong.any()):
            place = int(places[wrong][0])
            raise IrError(f"element {place % self.elements if self._private else place} of {self.name} {what}")


def _repeated(places: torch.Tensor, elements: int) -> torch.Tensor:
    """True where a place occurs more than once."""
    return torch.bincount(places, minlength=elements)[places] > 1


def _combine(data: torch.Tensor, places: torch.Tensor, values: torch.Tensor, mode: WriteMode) -> None:
    """Combine in the compute type; several values may go to one place."""
    wide = data.to(compute_dtype(data.dtype))
    match mode:
        case "add":
            wide.index_add_(0, places, values)
        case "mul":
            wide.scatter_reduce_(0, places, values, "prod")
        case "max":
            wide.scatter_reduce_(0, places, values, "amax")
        case "min":
            wide.scatter_reduce_(0, places, values, "amin")
    data[places] = wide[places].to(data.dtype)


def flat_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The elements from a tensor's first to its last, in the order of memory."""
    if tensor.numel() == 0:
        return tensor.new_empty(0)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,))


def garbage(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Fresh memory that has not been written."""
    width = torch.empty((), dtype=dtype).element_size()
    return torch.full((elements * width,), GARBAGE, dtype=torch.uint8).view(dtype)
