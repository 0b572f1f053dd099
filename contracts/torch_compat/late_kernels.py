"""Late kernels: what inductor writes is waited for when it is first called, not when it was written.

Place: a part of the door; see ``contracts.torch_compat``.
Inductor hands a graph's kernels to processes that compile them, and waits for the last before it returns. A model that
is one graph waits once; one of fifty regions waits fifty times, while the next region could be written. In here the
wait, and the cache entry that holds the compiled kernels, are put off until ``LateKernels.finish``.
Invariants: what is compiled outside of ``kernels_later``, or by another thread, is waited for as ever; so is what a
compilation benchmarks on the way. The caller of what was compiled finishes before.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

_here = threading.local()
"""``kernels`` of this thread: the ``LateKernels`` that collect what it compiles."""

_installing = threading.Lock()


class LateKernels:
    """Kernels that are being compiled, and cache entries that wait for them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waits: list[Callable[[], None]] = []
        self._entries: list[tuple[Any, Callable[[], None]]] = []

    @property
    def pending(self) -> bool:
        """Whether there is anything to wait for."""
        return bool(self._waits or self._entries)

    def finish(self) -> None:
        """Wait for the kernels and store what is to be stored.

        Raises:
            Exception: a kernel does not compile; raised again by later calls.
        """
        with self._lock:
            if not self.pending:
                return
            with _bundled([graph for graph, _ in self._entries]) as stored:
                while self._waits:
                    self._waits[0]()
                    del self._waits[0]
            for _, store in self._entries if stored else ():
                store()
            self._entries.clear()

    def wait_later(self, wait: Callable[[], None]) -> None:
        """Wait so when ``finish`` is called."""
        self._waits.append(wait)

    def store_later(self, graph: Any, store: Callable[[], None]) -> None:
        """Store a compiled graph so when its kernels are there."""
        self._entries.append((graph, store))


@contextlib.contextmanager
def kernels_later() -> Iterator[LateKernels]:
    """What inductor compiles in here, on this thread, is to be finished before it is called."""
    from torch._functorch import config as functorch_config

    kernels, before = LateKernels(), getattr(_here, "kernels", None)
    _install()
    # With that setting, others store the compiled graph as soon as it is there.
    _here.kernels = None if functorch_config.bundled_autograd_cache else kernels
    try:
        yield kernels
    finally:
        _here.kernels = before


@contextlib.contextmanager
def _bundled(graphs: list[Any]) -> Iterator[bool]:
    """Collect the kernels that are loaded in here into these compiled graphs; yields whether they may be stored then.

    Torch has one collection for the whole process. If another compilation runs now, the collection is its own, and
    nothing is stored: waiting for it could be waiting for ourselves, since a backward runs in a thread of its own.
    """
    from torch._dynamo.convert_frame import compile_lock
    from torch._inductor.triton_bundler import TritonBundle, TritonBundler

    if not graphs or not compile_lock.acquire(blocking=False):
        yield False
        return
    try:
        if TritonBundler._entries is not None:
            yield False
            return
        TritonBundler.begin_compile()
        try:
            yield True
            found, _ = TritonBundler.collect()
        finally:
            TritonBundler.end_compile()
        for graph in graphs:
            # Kernels that were there at once, since no process was ready, are in the graph's own.
            own = graph._triton_bundle or TritonBundle([], [])
            kernels = [*own.kernel_artifacts, *found.kernel_artifacts]
            graph.set_triton_bundle(TritonBundle(kernels, [*own.static_autotuners, *found.static_autotuners]))
    finally:
        compile_lock.release()


def _install() -> None:
    """Put the two places where torch waits and stores under the control of ``kernels_later``; done once."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import FxGraphCache

    with _installing:
        if getattr(AsyncCompile.wait, "_is_ours", False):
            return
        wait, store = _wait_that_can_be_late(AsyncCompile.wait), _store_that_can_be_late(FxGraphCache._save_graph)
        AsyncCompile.wait = wait  # type: ignore[method-assign]
        FxGraphCache._save_graph = staticmethod(store)  # type: ignore[method-assign]


def _wait_that_can_be_late(original: Callable[..., None]) -> Callable[..., None]:
    from torch._inductor.virtualized import V

    def wait(compiler: Any, scope: dict[str, Any]) -> None:
        kernels: LateKernels | None = getattr(_here, "kernels", None)
        # A graph with a name is benchmarked at once.
        if kernels is None or getattr(V.graph, "name", None) is not None:
            original(compiler, scope)
            return
        kernels.wait_later(lambda: original(compiler, scope))

    wait._is_ours = True  # type: ignore[attr-defined]
    return wait


def _store_that_can_be_late(original: Callable[..., None]) -> Callable[..., None]:
    from torch._guards import TracingContext, tracing

    def store(key: str, graph: Any, *arguments: Any) -> None:
        kernels: LateKernels | None = getattr(_here, "kernels", None)
        if kernels is None:
            original(key, graph, *arguments)
            return
        context = TracingContext.try_get()

        def within() -> None:
            with tracing(context):
                original(key, graph, *arguments)

        kernels.store_later(graph, within)

    return store
