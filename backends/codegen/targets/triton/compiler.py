"""Compiler: text of a kernel to machine code, by Triton, for hardware that need not be here.

Place: between ``printer`` and ``launcher``; ``machine_code`` does it. Input: a ``Text``. Output: a ``Binary``.
Kernels are compiled in processes side by side where torch has such ready, in threads otherwise. Triton keeps what it
compiled in a cache of its own, so that a text is compiled once per machine; a process compiles it once, too.
Invariants: nothing here asks for a device; what is compiled does not depend on where.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from mixbackend.backends.codegen.targets.triton.machine_code import (
    MachineCode,
    Order,
    function_of,
    machine_code,
    machine_code_apart,
    triton_environment,
)
from mixbackend.backends.codegen.targets.triton.text import FUNCTION, Text
from mixbackend.backends.common import forks
from mixbackend.contracts import CodegenError
from mixbackend.contracts.torch_compat import compile_processes_ready, in_compile_process

__all__ = ["FUNCTION", "WORKERS", "Architecture", "Binary", "compile_texts", "function_of"]

logger = logging.getLogger("mixbackend")

WORKERS = 8
"""Kernels compiled at a time at most in threads: the compiler leaves the GIL to others for a part of its work."""

_STARTS_EARLY = 90
"""Compute capability."""

_TURNS = forks.lock()


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

    @property
    def starts_early(self) -> bool:
        """Whether a kernel may be started while the one before it still runs (programmatic dependent launch)."""
        return self.backend == "cuda" and int(self.name) >= _STARTS_EARLY


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    Attributes:
        code: as the driver loads it.
        symbol: of the function in it.
        threads: of a block.
        shared: bytes of shared memory of a block.
        early: whether it may start while the kernel before it still runs: it waits for that one's results by itself.
    """

    code: bytes
    symbol: str
    threads: int
    shared: int
    early: bool = False


def compile_texts(texts: Sequence[Text], architecture: Architecture, aligned: bool = True) -> list[Binary]:
    """Machine code of kernels.

    Args:
        aligned: whether all memory begins at multiples of 16 bytes.

    Raises:
        CodegenError: Triton refused a text.
    """
    if len(texts) < 2:
        return [_compiled_once(text, architecture, aligned) for text in texts]
    # Threads that wait for processes cost nothing.
    most = max(WORKERS, os.cpu_count() or 1) if compile_processes_ready() else WORKERS
    with ThreadPoolExecutor(min(most, len(texts))) as pool:
        return list(pool.map(lambda text: _compiled_once(text, architecture, aligned), texts))


def _compiled_once(text: Text, architecture: Architecture, aligned: bool) -> Binary:
    """Threads that need what is being compiled wait for it: layers compiled side by side share kernels."""
    with _TURNS:
        turn = _turn_of(text, architecture, aligned)
    with turn:
        return _compiled(text, architecture, aligned)


@lru_cache(maxsize=4096)
def _turn_of(text: Text, architecture: Architecture, aligned: bool) -> threading.Lock:
    return forks.long_lock()


@lru_cache(maxsize=4096)
def _compiled(text: Text, architecture: Architecture, aligned: bool) -> Binary:
    whole = int(architecture.name) if architecture.name.isdigit() else architecture.name
    backend, warp = architecture.backend, architecture.warp
    order = Order(
        text.body, text.signature, text.warps, text.stages, aligned, backend, whole, warp, architecture.starts_early
    )
    try:
        made = _made_apart(order) or machine_code(order)
    except Exception as error:
        raise CodegenError(f"Triton refused a kernel: {type(error).__name__}: {error}\n{text.body}") from error
    if made.own_memory:
        raise CodegenError(f"Triton wants memory of its own for a kernel:\n{text.body}")
    return Binary(made.code, made.symbol, text.warps * architecture.warp, made.shared, made.waits)


def _made_apart(order: Order) -> MachineCode | None:
    """Made in a process; ``None`` where there is none, or if that failed: an attempt in this process shows why."""
    if not compile_processes_ready():
        return None
    try:
        return in_compile_process(machine_code_apart, order, triton_environment()).result()
    except Exception:
        logger.debug("a kernel could not be compiled in a process", exc_info=True)
        return None
