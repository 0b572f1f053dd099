"""Machine code of one kernel, by Triton.

Place: below ``compiler``, which calls it here or in a process of its own: nothing is imported but Triton and what
kernels call, so that such a process is quick to be ready. Input: plain values. Output: plain values.
Invariants: nothing here asks for a device; the function is made of text, and no file is written for it.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from mixbackend.backends.codegen.targets.triton.text import FUNCTION
from mixbackend.backends.common import forks

_FRONT = forks.long_lock()
"""Held while Python text becomes Triton's first representation: ``ast.parse`` in several threads at once counts its
recursion wrongly, and fails."""


class Order(NamedTuple):
    """What is to be compiled.

    Attributes:
        body: text of the function ``FUNCTION``.
        signature: name and Triton type of every argument.
        warps: of a block.
        stages: turns of a loop with loads that are under way at once; 0 leaves that to Triton.
        aligned: whether all memory begins at multiples of 16 bytes.
        backend: ``cuda`` or ``hip``.
        architecture: its name, a number where Triton wants one.
        warp: threads of a warp.
        early: whether the hardware can start a kernel while the one before it still runs.
    """

    body: str
    signature: tuple[tuple[str, str], ...]
    warps: int
    stages: int
    aligned: bool
    backend: str
    architecture: int | str
    warp: int
    early: bool = False


class MachineCode(NamedTuple):
    """What came of it.

    Attributes:
        code: as the driver loads it.
        symbol: of the function in it.
        shared: bytes of shared memory of a block.
        own_memory: bytes that the kernel wants of the GPU's memory for itself.
        waits: whether it waits by itself for what the kernel before it wrote.
    """

    code: bytes
    symbol: str
    shared: int
    own_memory: int
    waits: bool = False


def function_of(body: str, early: bool = False) -> Any:
    """The Triton function of a text: compiled, or interpreted where Triton was told so before it was imported.

    Args:
        early: see ``Order``.
    """
    import triton
    import triton.language as tl

    from mixbackend.backends.codegen.targets.triton import library

    file = f"<mixbackend kernel {hashlib.sha256(body.encode()).hexdigest()[:16]}>"
    # Triton reads a function's text where Python looks for it.
    linecache.cache[file] = (len(body), None, body.splitlines(keepends=True), file)
    names = {**vars(library), "triton": triton, "tl": tl, "__name__": file}
    names |= {"begin": library.wait_and_let_start} if early else {}
    exec(compile(body, file, "exec"), names)  # our own text
    return names[FUNCTION]


def machine_code(order: Order) -> MachineCode:
    """Compile a kernel.

    Raises:
        Exception: whatever Triton raises.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    class Source(ASTSource):  # type: ignore[misc] # Triton has no types
        def hash(self) -> Any:
            with _FRONT:
                return super().hash()

        def make_ir(self, *arguments: Any, **keywords: Any) -> Any:
            with _FRONT:
                return super().make_ir(*arguments, **keywords)

    pointers = [place for place, (_, kind) in enumerate(order.signature) if kind.startswith("*")]
    attributes = {(place,): [["tt.divisibility", 16]] for place in pointers} if order.aligned else {}
    options = {
        "num_warps": order.warps,
        "enable_fp_fusion": True,
        **({"num_stages": order.stages} if order.stages else {}),
    }
    function = function_of(order.body, order.early)
    source = Source(fn=function, signature=dict(order.signature), constexprs={}, attrs=attributes)
    target = GPUTarget(order.backend, order.architecture, order.warp)
    made = triton.compile(source, target=target, options=options)
    metadata = made.metadata
    code = made.asm["cubin" if order.backend == "cuda" else "hsaco"]
    waits = waits_first(str(made.asm.get("ptx", "")))
    own_memory = getattr(metadata, "global_scratch_size", 0) or 0
    return MachineCode(code, metadata.name, metadata.shared, own_memory, waits)


def waits_first(ptx: str) -> bool:
    """Whether a kernel waits for the one before it, and touches no memory of the GPU until then."""
    before, waits, _ = ptx.partition("griddepcontrol.wait")
    return bool(waits) and not re.search(r"\b(ld|st|ldu|atom|red|cp)\.[\w.]*global", before)


def machine_code_apart(order: Order, environment: Mapping[str, str]) -> MachineCode:
    """The same in a process that others use as well, as Triton was told in the process that asks."""
    with _told(environment):
        return machine_code(order)


@contextmanager
def _told(environment: Mapping[str, str]) -> Iterator[None]:
    before = triton_environment()
    _replace(before, environment)
    try:
        yield
    finally:
        _replace(environment, before)


def triton_environment() -> dict[str, str]:
    """What Triton is told by environment variables."""
    return {name: value for name, value in os.environ.items() if name.startswith("TRITON_")}


def _replace(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    for name in old.keys() - new.keys():
        os.environ.pop(name, None)
    os.environ.update(new)
