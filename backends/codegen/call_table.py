"""A call table: what is left of a program once its kernels are compiled.

Place: read off a ``Program``; a target launches by it, and an artifact keeps it, so that what was compiled before runs
again without being lowered or scheduled.
Invariants: numbers only. What depends on sizes (parameters, starts of workspace pieces) comes with each launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class TabledCall:
    """One call.

    Attributes:
        kernel: place of the kernel among the program's distinct kernels.
        slots: memory for each of the kernel's buffers: tensors first, then pieces of the workspace.
        parameter_count, number_count: how many values of a launch belong to this call.
    """

    kernel: int
    slots: tuple[int, ...]
    parameter_count: int
    number_count: int


@dataclass(frozen=True, slots=True)
class CallTable:
    """See the module's docstring.

    Attributes:
        kernel_count: of distinct kernels.
        tensor_count: tensors that a launch is given before the workspace.
        pieces: type of each piece of the workspace.
        calls: in order.
        telling: calls after which nothing is told any more; what was told is looked at there, before the calls that
            write into inputs, or at the end. ``None`` if no call tells anything.
    """

    kernel_count: int
    tensor_count: int
    pieces: tuple[torch.dtype, ...]
    calls: tuple[TabledCall, ...]
    telling: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The table as a JSON value."""
        return {
            "kernels": self.kernel_count,
            "tensors": self.tensor_count,
            "pieces": [str(dtype).removeprefix("torch.") for dtype in self.pieces],
            "calls": [[call.kernel, call.slots, call.parameter_count, call.number_count] for call in self.calls],
            "telling": self.telling,
        }

    @classmethod
    def from_json(cls, value: Any) -> CallTable:
        """The table behind a JSON value.

        Raises:
            ValueError: it is not one, or a call names a kernel or memory that does not exist.
        """
        try:
            pieces = tuple(_dtype(name) for name in value["pieces"])
            calls = tuple(
                TabledCall(kernel, tuple(slots), parameters, numbers)
                for kernel, slots, parameters, numbers in value["calls"]
            )
            table = cls(value["kernels"], value["tensors"], pieces, calls, value["telling"])
            table._check()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not a call table: {error}") from error
        return table

    def _check(self) -> None:
        if self.telling is not None and not _within([self.telling], len(self.calls) + 1):
            raise ValueError(f"impossible place {self.telling}")
        slots = self.tensor_count + len(self.pieces)
        for call in self.calls:
            inside = _within([call.kernel], self.kernel_count) and _within(call.slots, slots)
            if not inside or min(call.parameter_count, call.number_count) < 0:
                raise ValueError(f"impossible {call}")


def _within(places: Sequence[int], count: int) -> bool:
    return all(isinstance(place, int) and 0 <= place < count for place in places)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no type of elements")
    return dtype
