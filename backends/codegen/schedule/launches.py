"""Launches: which kernels start at once, because none of them waits for another.

Place: after kernels were built, before ``assemble``, for targets that can (``Blocks.beside``).
Input: kernels in order. Output: the same kernels in launches, in order. Models have hundreds of tiny computations that
have nothing to do with each other: a copy of each weight in another type, a counter of each batch norm. Each takes less
time than starting it.
Two kinds go together, each with its own: small kernels of points (a conversion of weights), and single rows of products
over equally many terms (the projections of one vector), of which each alone is too little to keep memory busy.
Invariants: a kernel comes after all that write what it touches, and before all that write what it reads later; kernels
of one launch touch nothing that another of them writes.
Non-goals: symbolic sizes; the memory of one launch is planned as that of one kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import sympy

from mixbackend.backends.codegen.ir.grammar import loops_of, walk
from mixbackend.backends.codegen.ir.kernel import Accumulate, AnyKernel, Kernel
from mixbackend.backends.codegen.ir.scalar import Read
from mixbackend.backends.codegen.schedule.group import Layout
from mixbackend.backends.codegen.schedule.hints import points

LARGEST = 32 << 20
"""Bytes of memory that a kernel touches at most, to be slight beside what starting it takes."""

MOST_BUFFERS = 192
"""Buffers of a launch: addresses are handed over one by one."""

MOST_ROWS = 8
"""Single rows of a launch: each is code of its own."""

_POINTS = sympy.Integer(0)
"""Kind of kernels of points; that of single rows is the number of their terms."""


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
    kinds = [_kind(kernel, layouts) if beside > 1 else None for kernel in kernels]
    first = [
        place
        for place, kernel in enumerate(kernels)
        if kinds[place] == _POINTS and not before[place] and all(item.name in outside for item in kernel.buffers)
    ]
    made: list[tuple[int, ...]] = list(_parts(first, kernels, beside))
    done = set(first)
    waiting: dict[sympy.Expr, list[int]] = {}

    def start() -> None:
        for kind, places in waiting.items():
            made.extend(_parts(places, kernels, beside if kind == _POINTS else min(beside, MOST_ROWS)))
        waiting.clear()

    for place in (place for place in range(len(kernels)) if place not in done):
        if any(before[place] & set(places) for places in waiting.values()):
            start()
        kind = kinds[place]
        if kind is None:
            made.append((place,))
        else:
            waiting.setdefault(kind, []).append(place)
    start()
    return made


def _parts(places: Sequence[int], kernels: Sequence[AnyKernel], beside: int) -> Iterator[tuple[int, ...]]:
    """Kernels that wait for no other, as many at a time as one launch takes."""
    part: list[int] = []
    for place in places:
        count = sum(len(kernels[item].buffers) for item in (*part, place))
        if part and (len(part) >= beside or count > MOST_BUFFERS):
            yield tuple(part)
            part = []
        part.append(place)
    if part:
        yield tuple(part)


def _kind(kernel: AnyKernel, layouts: Mapping[str, Layout]) -> sympy.Expr | None:
    """What a kernel may start with; ``None`` if it starts alone."""
    if not isinstance(kernel, Kernel) or kernel.scratch:
        return None
    if any(symbol for loop in kernel.outer for symbol in loop.extent.free_symbols):
        return None
    if any(loops_of(nest) for nest in kernel.nests):
        return _terms_of_row(kernel)
    sizes = [layouts[item.name].type for item in kernel.buffers]
    small = sum(points(item.sizes, {}) * item.dtype.itemsize for item in sizes) <= LARGEST
    return _POINTS if small else None


def _terms_of_row(kernel: Kernel) -> sympy.Expr | None:
    """How many terms the sums of a kernel have, if it is a single row of products: all sums read one vector."""
    if len(kernel.nests) != 1 or kernel.nests[0].loops:
        return None
    (nest,) = kernel.nests
    terms = sympy.Mul(*(loop.extent for loop in nest.reduced))
    outer = {loop.index for loop in kernel.outer}
    sums = [item for item in nest.body if isinstance(item, Accumulate) and item.kind in ("sum", "dot")]
    if not outer or terms.free_symbols or len(sums) != len(nest.body):
        return None
    reads = [[node for node in walk(item.value) if isinstance(node, Read)] for item in sums]
    shares = all(any(outer.isdisjoint(node.offset.free_symbols) for node in found) for found in reads)
    return terms if shares else None


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
