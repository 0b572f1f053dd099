"""Launches: which kernels start at once, because none of them waits for another.

Place: after kernels were built, before ``assemble``, for targets that can (``Blocks.beside``).
Input: kernels in order. Output: the same kernels in launches, in order. Models have hundreds of tiny computations that
have nothing to do with each other: a copy of each weight in another type, a counter of each batch norm. Each takes less
time than starting it.
Only small kernels of points go together: a conversion of weights is one, a fold or a product is not.
Invariants: a kernel comes after all that write what it touches, and before all that write what it reads later; kernels
of one launch touch nothing that another of them writes.
Non-goals: symbolic sizes; the memory of one launch is planned as that of one kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mixbackend.backends.codegen.ir.kernel import AnyKernel, Kernel
from mixbackend.backends.codegen.schedule.draft import inner_loops
from mixbackend.backends.codegen.schedule.group import Layout
from mixbackend.backends.codegen.schedule.hints import points

LARGEST = 32 << 20
"""Bytes of memory that a kernel touches at most, to be slight beside what starting it takes."""

MOST_BUFFERS = 192
"""Buffers of a launch: addresses are handed over one by one."""


def launches(
    kernels: Sequence[AnyKernel], layouts: Mapping[str, Layout], outside: frozenset[str], beside: int
) -> list[tuple[int, ...]]:
    """Places of the kernels that start at once.

    Args:
        layouts: of all tensors.
        outside: inputs and outputs: kernels that make nothing else of inputs alone may come first.
        beside: kernels of one launch at most.
    """
    before = _dependencies(kernels)
    slight = [beside > 1 and _is_slight(kernel, layouts) for kernel in kernels]
    first = [
        place
        for place, kernel in enumerate(kernels)
        if slight[place] and not before[place] and all(item.name in outside for item in kernel.buffers)
    ]
    made: list[tuple[int, ...]] = list(_parts(first, kernels, beside))
    done = set(first)
    waiting: list[int] = []
    for place in (place for place in range(len(kernels)) if place not in done):
        if before[place] & set(waiting):
            made += _parts(waiting, kernels, beside)
            waiting = []
        if slight[place]:
            waiting.append(place)
        else:
            made.append((place,))
    return [*made, *_parts(waiting, kernels, beside)]


def _parts(places: Sequence[int], kernels: Sequence[AnyKernel], beside: int) -> Iterator[tuple[int, ...]]:
    """Kernels that wait for nobody, as many at a time as one launch takes."""
    part: list[int] = []
    for place in places:
        count = sum(len(kernels[item].buffers) for item in (*part, place))
        if part and (len(part) >= beside or count > MOST_BUFFERS):
            yield tuple(part)
            part = []
        part.append(place)
    if part:
        yield tuple(part)


def _is_slight(kernel: AnyKernel, layouts: Mapping[str, Layout]) -> bool:
    """Whether a kernel is small, and every point of it stands alone."""
    if not isinstance(kernel, Kernel) or kernel.scratch or any(inner_loops(nest) for nest in kernel.nests):
        return False
    sizes = [layouts[item.name].type for item in kernel.buffers]
    if any(symbol for loop in kernel.outer for symbol in loop.extent.free_symbols):
        return False
    return sum(points(item.sizes, {}) * item.dtype.itemsize for item in sizes) <= LARGEST


def _dependencies(kernels: Sequence[AnyKernel]) -> list[set[int]]:
    """For each kernel the earlier ones that have to run before it, nearest ones at least."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    before: list[set[int]] = []
    for place, kernel in enumerate(kernels):
        needed: set[int] = set()
        for item in kernel.buffers:
            needed |= {writer[item.name]} if item.name in writer else set()
            if item.access != "read":
                needed |= set(readers.pop(item.name, ()))
        for item in kernel.buffers:
            if item.access == "read":
                readers.setdefault(item.name, []).append(place)
            else:
                writer[item.name] = place
        before.append(needed - {place})
    return before
