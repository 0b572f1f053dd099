"""Kernels as C++ text.

Place: the first half of the C++ target; ``build`` compiles what is printed here against ``vector.hpp``.
Input: kernels. Output: one function per kernel, ``extern "C" i64 NAME(char** buffers, const i64* parameters, const
double* numbers, const Team* team)``, with buffers, parameters and numbers in the kernel's order (``team.hpp``).
Invariants: the text depends on the kernel alone. Parallel outer loops are one range that threads share; what a kernel
needs besides it gets from the headers.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from mixbackend.backends.codegen.ir.kernel import AnyKernel, Kernel, KernelLoop, Nest, Store, TemplateKernel
from mixbackend.backends.codegen.ir.scalar import is_checked
from mixbackend.backends.codegen.targets.cpp.indices import index_text
from mixbackend.backends.codegen.targets.cpp.literals import ARGUMENTS, STORAGE, function_head
from mixbackend.backends.codegen.targets.cpp.nests import nest_lines
from mixbackend.backends.codegen.targets.cpp.scopes import INDENT
from mixbackend.backends.codegen.targets.cpp.templates import print_template


def print_any_kernel(kernel: AnyKernel, name: str) -> str:
    """The functions of a kernel of either kind."""
    return print_template(kernel, name) if isinstance(kernel, TemplateKernel) else print_kernel(kernel, name)


def print_kernel(kernel: Kernel, name: str) -> str:
    """The functions of one kernel: the points of a piece of its parallel range, and the whole, ``name``."""
    parallel = _parallel(kernel)
    others = [loop for loop in kernel.outer if loop not in parallel]
    nests = [nest_lines(nest, _dtypes(kernel), _stored(nest)) for nest in kernel.nests]
    inside = nests[0] if len(nests) == 1 else [line for lines in nests for line in ("{", *_indented(lines), "}")]
    for loop in reversed(others):
        inside = _loop(loop, inside)
    told = ["Told told(*team);"] if is_checked(kernel) else []
    head = [*_parameters(kernel), *_memory(kernel), *told]
    whole = function_head(name)
    if not parallel:
        return _function(whole, ["if (team->number != 0) return 1;", *head, *inside, "return 1;"])
    team = ", const Team* team" if told else ""
    points = f"static void {name}_points({ARGUMENTS}{team}, i64 first, i64 last) {{"
    return _function(points, [*head, *_points(parallel, inside)]) + "\n" + _function(whole, _shared(kernel, name))


def _parallel(kernel: Kernel) -> tuple[KernelLoop, ...]:
    """Outer loops that threads share. One with an extent that depends on another outer index stays a loop inside."""
    indices = {loop.index for loop in kernel.outer}
    return tuple(loop for loop in kernel.outer if loop.mode == "parallel" and not loop.extent.free_symbols & indices)


def _dtypes(kernel: Kernel) -> dict[str, torch.dtype]:
    scratch = {item.name: item.dtype for item in kernel.scratch}
    return {item.name: item.dtype for item in kernel.buffers} | scratch


def _stored(nest: Nest) -> frozenset[str]:
    return frozenset(item.buffer for item in (*nest.body, *nest.finish) if isinstance(item, Store))


def _text(expression: sympy.Expr) -> str:
    return index_text(sympy.sympify(expression), str, lambda part: len(part.free_symbols))


def _parameters(kernel: Kernel) -> list[str]:
    lines = [f"const i64 {symbol} = parameters[{place}];" for place, symbol in enumerate(kernel.parameters)]
    return lines + [f"const double {symbol} = numbers[{place}];" for place, symbol in enumerate(kernel.numbers)]


def _memory(kernel: Kernel) -> list[str]:
    """Pointers to buffers and scratch. What is written overlaps nothing else, so the compiler may reorder freely."""
    lines = []
    for place, buffer in enumerate(kernel.buffers):
        kind = STORAGE[buffer.dtype]
        pointer = f"const {kind}*" if buffer.access == "read" else f"{kind}* __restrict__"
        cast = f"const {kind}*" if buffer.access == "read" else f"{kind}*"
        lines.append(f"{pointer} const {buffer.name} = reinterpret_cast<{cast}>(buffers[{place}]);")
    for piece in kernel.scratch:
        kind, size = STORAGE[piece.dtype], _text(piece.elements * piece.dtype.itemsize)
        lines.append(f"const Scratch {piece.name}_memory({size});")
        lines.append(
            f"{kind}* __restrict__ const {piece.name} = reinterpret_cast<{kind}*>({piece.name}_memory.start());"
        )
    return lines


def _points(parallel: Sequence[KernelLoop], inside: Sequence[str]) -> list[str]:
    """All points of a piece of the range: indices by division at its start, then counted."""
    lines, rest = [], "first"
    for loop in reversed(parallel):
        extent = _text(loop.extent)
        outermost = loop is parallel[0]
        lines.append(f"i64 {loop.index} = {rest if outermost else f'{rest} % {extent}'};")
        rest = f"{rest} / {extent}"
    if len(parallel) == 1:
        index = parallel[0].index
        return [f"for (i64 {index} = first; {index} < last; ++{index}) {{", *_indented(inside), "}"]
    lines += ["for (i64 point = first; point < last; ++point) {", *_indented(inside), *_indented(_count(parallel)), "}"]
    return ["if (first == last) return;", *lines]


def _count(parallel: Sequence[KernelLoop]) -> list[str]:
    """The next point."""
    lines = [f"++{parallel[0].index};"]
    for loop in parallel[1:]:
        lines = [
            f"if (++{loop.index} == {_text(loop.extent)}) {{",
            f"{INDENT}{loop.index} = 0;",
            *_indented(lines),
            "}",
        ]
    return lines


def _shared(kernel: Kernel, name: str) -> list[str]:
    points = _text(sympy.Mul(*(loop.extent for loop in _parallel(kernel))))
    team = "team, " if is_checked(kernel) else ""
    call = f"{name}_points(buffers, parameters, numbers, {team}first, last);"
    return [
        *_parameters(kernel)[: len(kernel.parameters)],
        f"return share_points(*team, {points}, {_text(kernel.work)}, [=](i64 first, i64 last) {{ {call} }});",
    ]


def _loop(loop: KernelLoop, inside: Sequence[str]) -> list[str]:
    head = f"for (i64 {loop.index} = 0; {loop.index} < {_text(loop.extent)}; ++{loop.index}) {{"
    return [head, *_indented(inside), "}"]


def _function(head: str, body: Sequence[str]) -> str:
    return "\n".join([head, *_indented(body), "}"]) + "\n"


def _indented(lines: Sequence[str]) -> list[str]:
    return [INDENT + line for line in lines]
