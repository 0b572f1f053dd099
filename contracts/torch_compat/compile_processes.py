"""Processes that compile kernels: torch's own, which inductor uses, for every backend that compiles with Triton.

Place: a part of the door; see ``contracts.torch_compat``.
Triton's compiler is Python for a good part: in threads of one process its kernels wait for one another. Starting
processes takes seconds, so they are started before they are needed, and nothing waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class CompileProcesses:
    """Whether they were started."""

    def __init__(self) -> None:
        self._started = threading.Event()

    def start(self) -> None:
        """Begin to start them, once, unless torch was told to have none.

        Meanwhile, what the first call needs is made ready: inductor is loaded, and in a thread Triton's files are
        digested.
        """
        if self._started.is_set():
            return
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.runtime.triton_compat import HAS_TRITON, triton_key

        # Asking whether they are ready starts them.
        AsyncCompile.use_process_pool()
        self._started.set()
        if HAS_TRITON:
            # Part of every key of inductor's; the digest is remembered.
            threading.Thread(target=triton_key, name="mixbackend-triton-key", daemon=True).start()
        import torch._inductor.compile_fx  # noqa: F401

    def ready(self) -> bool:
        """Whether work that is handed over now begins at once; never starts them."""
        if not self._started.is_set():
            return False
        from torch._inductor.async_compile import AsyncCompile

        return bool(AsyncCompile.use_process_pool())


_of_this_process = CompileProcesses()
start_compile_processes = _of_this_process.start
compile_processes_ready = _of_this_process.ready


def in_compile_process(function: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Call a function in one of the processes.

    Args:
        function: of a module that is quick to import; each process imports it.
        arguments: can be pickled.
    """
    from torch._inductor.async_compile import AsyncCompile

    future: Future[Result] = AsyncCompile.process_pool().submit(function, *arguments)
    return future
