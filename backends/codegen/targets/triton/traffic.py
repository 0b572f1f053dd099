"""What a kernel moves through memory, as far as plans depend on it.

Place: used by ``plan``. Input: a specialised kernel. Output: how many large tensors there are, and along which loops
neighbours lie.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixbackend.backends.codegen.ir.grammar import loops_of
from mixbackend.backends.codegen.ir.kernel import Kernel, KernelLoop, Nest
from mixbackend.backends.codegen.schedule.draft import Access, nest_accesses


@dataclass(frozen=True)
class Traffic:
    """What moves through memory: tensors that are as large as rows and outer points together.

    Attributes:
        streams: how many they are.
        loads: how many of them are read.
        packed: 2 where all their elements have 16 bits or fewer: a thread takes twice as many, else 1.
    """

    streams: int
    loads: int
    packed: int


def traffic_of(kernel: Kernel) -> Traffic:
    """Of a kernel."""
    outer = {loop.index for loop in kernel.outer}
    moving = [access for nest in kernel.nests for access in nest_accesses(nest) if _moves_along_row(access, nest)]
    # Keys that several heads share move along most of the outer loops only, and are still what is read.
    most = max((len(access.offset.free_symbols & outer) for access in moving), default=0)
    large = [access for access in moving if len(access.offset.free_symbols & outer) == most]
    names = {access.buffer for access in large}
    sizes = [item.dtype.itemsize for item in kernel.buffers if item.name in names]
    loads = len({access.buffer for access in large if not access.write})
    return Traffic(len(sizes), loads, 2 if max(sizes, default=4) <= 2 else 1)


def _moves_along_row(access: Access, nest: Nest) -> bool:
    loops = loops_of(nest)
    return not loops or not access.offset.free_symbols.isdisjoint(loop.index for loop in loops)


def transposed_loops(kernel: Kernel) -> tuple[KernelLoop, KernelLoop] | None:
    """The loop in which loads are contiguous and the one in which stores are, where these are two."""
    accesses = [access for nest in kernel.nests for access in nest_accesses(nest)]
    store = next((access for access in accesses if access.write and not access.dynamic), None)
    near = None if store is None else _contiguous(store, kernel)
    if near is None:
        return None
    for access in accesses:
        far = None if access.write or access.dynamic else _contiguous(access, kernel)
        if far is not None and far is not near and access.stride(near.index) not in (0, 1):
            return far, near
    return None


def _contiguous(access: Access, kernel: Kernel) -> KernelLoop | None:
    return next((loop for loop in kernel.outer if access.stride(loop.index) == 1), None)
