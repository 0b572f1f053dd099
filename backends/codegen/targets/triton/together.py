"""Kernels of points that run at once as one Triton function: each has blocks of its own.

Place: beside ``printer``, for launches of several calls. Input: specialised kernels of known sizes with their plans,
which have equally many warps. Output: a ``Text`` with all buffers in order, then all numbers, as arguments, and its
number of blocks.
Equal kernels are one function that is called for each. Comparisons stand one after the other and not inside each other:
Triton's compiler would recurse as deep as there are kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from mixbackend.backends.codegen.ir.kernel import Kernel
from mixbackend.backends.codegen.targets.triton.dtypes import POINTERS
from mixbackend.backends.codegen.targets.triton.plan import Plan
from mixbackend.backends.codegen.targets.triton.printer import block_count, print_part
from mixbackend.backends.codegen.targets.triton.text import FUNCTION, Text


def print_together(parts: Sequence[tuple[Kernel, Plan]]) -> tuple[Text, sympy.Expr]:
    """The text, and the number of blocks."""
    functions: dict[tuple[Kernel, Plan], str] = {}
    pointers: list[tuple[str, str]] = []
    numbers: list[tuple[str, str]] = []
    lines = ["begin()", "block = tl.program_id(0)"]
    start = 0
    for kernel, plan in parts:
        name = functions.setdefault((kernel, plan), f"part{len(functions)}")
        own = [(f"a{len(pointers) + place}", POINTERS[item.dtype]) for place, item in enumerate(kernel.buffers)]
        given = [(f"n{len(numbers) + place}", "fp64") for place in range(len(kernel.numbers))]
        end = start + int(block_count(plan))
        arguments = ", ".join(argument for argument, _ in (*own, *given))
        lines.append(f"if (block >= {start}) & (block < {end}):")
        lines.append(f"    {name}(block - {start}, {arguments})")
        pointers += own
        numbers += given
        start = end
    signature = (*pointers, *numbers)
    texts = [print_part(kernel, plan, name) for (kernel, plan), name in functions.items()]
    head = f"@triton.jit\ndef {FUNCTION}({', '.join(name for name, _ in signature)}):\n"
    texts.append(head + "".join(f"    {line}\n" for line in lines))
    return Text("\n".join(texts), signature, parts[0][1].warps), sympy.Integer(start)
