"""Memory plan: where tensors between kernels live in the workspace, and which kernels may work in place.

Place: inside ``assemble``, and again after calls were taken out of a program (``prepared``).
Input: for each call, which tensors it reads and writes. Output: non-overlapping pieces for tensors that live at once.
Sizes may be symbolic: a freed piece is reused where the sizes are equal expressions, or both known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import FloorDiv
from mixbackend.backends.codegen.ir.program import WorkspaceBuffer
from mixbackend.backends.codegen.schedule.group import Layout

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


@dataclass(frozen=True)
class Usage:
    """Tensors of calls that may run at once."""

    reads: frozenset[str]
    writes: frozenset[str]

    @classmethod
    def of(cls, accesses: Iterable[tuple[str, str]]) -> Usage:
        """From names of tensors and how they are used, see ``BufferParameter.access``."""
        made = tuple(accesses)
        reads = frozenset(name for name, access in made if access != "write")
        return cls(reads, frozenset(name for name, access in made if access != "read"))


@dataclass
class _Slot:
    start: sympy.Expr
    size: sympy.Expr


def plan_workspace(
    usages: Sequence[Usage], sizes: Mapping[str, tuple[torch.dtype, sympy.Expr]]
) -> tuple[tuple[WorkspaceBuffer, ...], sympy.Expr]:
    """Give every tensor between kernels a piece of the workspace.

    Args:
        usages: of the calls, in order.
        sizes: of these tensors: type of their elements, and bytes in whole lines. All others have memory already.

    Returns:
        The pieces in order of definition, and the bytes of the whole workspace.
    """
    last = {name: step for step, usage in enumerate(usages) for name in usage.reads | usage.writes}
    free: list[_Slot] = []
    taken: dict[str, _Slot] = {}
    pieces: list[WorkspaceBuffer] = []
    total: sympy.Expr = sympy.Integer(0)
    for step, usage in enumerate(usages):
        for name in sorted(usage.writes & (sizes.keys() - taken.keys())):
            dtype, size = sizes[name]
            slot = _reuse(free, size)
            if slot is None:
                slot = _Slot(total, size)
                total = total + size
            taken[name] = slot
            pieces.append(WorkspaceBuffer(name, dtype, slot.start, size))
        free.extend(taken[name] for name in sorted(taken) if last[name] == step)
    return tuple(pieces), sympy.expand(total)


def _reuse(free: list[_Slot], size: sympy.Expr) -> _Slot | None:
    """The tightest free piece that is certainly large enough."""
    fitting = [slot for slot in free if slot.size == size or (slot.size - size).is_nonnegative]
    if not fitting:
        return None
    known = [slot for slot in fitting if slot.size.is_Integer]
    slot = next((item for item in fitting if item.size == size), None)
    slot = slot or (min(known, key=lambda item: int(item.size)) if known else fitting[0])
    free.remove(slot)
    return slot


def aligned_bytes(layout: Layout) -> sympy.Expr:
    """Bytes of a tensor, rounded up to whole lines."""
    size = sympy.Mul(*layout.type.sizes) * layout.type.dtype.itemsize
    return sympy.expand(ALIGNMENT * FloorDiv(size + ALIGNMENT - 1, sympy.Integer(ALIGNMENT)))
