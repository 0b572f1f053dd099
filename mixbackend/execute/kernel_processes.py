"""Processes that compile kernels for GPUs: started once it is known that there is something to compile.

Place: below ``compile``. Where nothing is remembered yet they are started with the mixture, so that they are ready by
the first graph (``expect_kernels``); otherwise where the first region for a GPU is compiled (``expect_kernels_of``). A
process that finds all its plans and code in the cache loads no compiler, and has no processes to end.
Invariants: never raises: without processes kernels are compiled in threads.
"""

from __future__ import annotations

import logging

from mixbackend.contracts import Backend, Region
from mixbackend.contracts.graph import accelerator
from mixbackend.contracts.torch_compat import start_compile_processes

logger = logging.getLogger("mixbackend")


def expect_kernels() -> None:
    """Start what compiling for a GPU would wait for; it takes seconds to be ready."""
    try:
        start_compile_processes()
    except Exception:
        logger.debug("no processes that compile kernels", exc_info=True)


def expect_kernels_of(backend: Backend, region: Region) -> None:
    """The same, if a backend that compiles, rather than calls a library, is about to compile a region for a GPU."""
    results = [meta for view in region.views for meta in view.outputs]
    if "cuda" in backend.traits().compiles_behind and accelerator(results) == "cuda":
        expect_kernels()
