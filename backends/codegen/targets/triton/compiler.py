"""Compiler: text of a kernel to machine code, by Triton, for hardware that need not be here.

Place: between ``printer`` and ``launcher``. Input: a ``Text``. Output: a ``Binary``.
Triton keeps what it compiled in a cache of its own, so that a text is compiled once per machine.
Invariants: nothing here asks for a device; the function is made of text, and no file is written for it.
"""

from __future__ import annotations

import hashlib
import linecache
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mixbackend.backends.codegen.targets.triton.text import FUNCTION, Text
from mixbackend.contracts import CodegenError

WORKERS = 8
"""Kernels compiled at a time at most: the compiler leaves the GIL to others."""

_FRONT = threading.Lock()
"""Held while Python text becomes Triton's first representation: ``ast.parse`` in several threads at once counts its
recursion wrongly, and fails."""


@dataclass(frozen=True)
class Architecture:
    """What code is made for.

    Attributes:
        backend: ``cuda`` or ``hip``.
        name: ``90`` for compute capability 9.0, ``gfx942``.
        warp: threads of a warp.
    """

    backend: str
    name: str
    warp: int


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    Attributes:
        code: as the driver loads it.
        symbol: of the function in it.
        threads: of a block.
        shared: bytes of shared memory of a block.
    """

    code: bytes
    symbol: str
    threads: int
    shared: int


def function_of(body: str) -> Any:
    """The Triton function of a text: compiled, or interpreted where Triton was told so before it was imported."""
    import triton
    import triton.language as tl

    from mixbackend.backends.codegen.targets.triton import library

    file = f"<mixbackend kernel {hashlib.sha256(body.encode()).hexdigest()[:16]}>"
    # Triton reads a function's text where Python looks for it.
    linecache.cache[file] = (len(body), None, body.splitlines(keepends=True), file)
    names = {**vars(library), "triton": triton, "tl": tl, "__name__": file}
    exec(compile(body, file, "exec"), names)  # our own text
    return names[FUNCTION]


def compile_texts(texts: Sequence[Text], architecture: Architecture, aligned: bool = True) -> list[Binary]:
    """Machine code of kernels.

    Args:
        aligned: whether all memory begins at multiples of 16 bytes.

    Raises:
        CodegenError: Triton refused a text.
    """
    if len(texts) < 2:
        return [_compiled(text, architecture, aligned) for text in texts]
    with ThreadPoolExecutor(min(WORKERS, len(texts))) as pool:
        return list(pool.map(lambda text: _compiled(text, architecture, aligned), texts))


@lru_cache(maxsize=4096)
def _compiled(text: Text, architecture: Architecture, aligned: bool) -> Binary:
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

    whole = int(architecture.name) if architecture.name.isdigit() else architecture.name
    pointers = [place for place, (_, kind) in enumerate(text.signature) if kind.startswith("*")]
    attributes = {(place,): [["tt.divisibility", 16]] for place in pointers} if aligned else {}
    options = {
        "num_warps": text.warps,
        "enable_fp_fusion": True,
        **({"num_stages": text.stages} if text.stages else {}),
    }
    try:
        source = Source(fn=function_of(text.body), signature=dict(text.signature), constexprs={}, attrs=attributes)
        target = GPUTarget(architecture.backend, whole, architecture.warp)
        made = triton.compile(source, target=target, options=options)
    except Exception as error:
        raise CodegenError(f"Triton refused a kernel: {type(error).__name__}: {error}\n{text.body}") from error
    code = made.asm["cubin" if architecture.backend == "cuda" else "hsaco"]
    metadata = made.metadata
    if getattr(metadata, "global_scratch_size", 0):
        raise CodegenError(f"Triton wants memory of its own for a kernel:\n{text.body}")
    return Binary(code, metadata.name, text.warps * architecture.warp, metadata.shared)
