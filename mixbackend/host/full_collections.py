"""Full collections of garbage wait until a graph is compiled, or our modules are loaded.

Place: around ``Mixture.__call__``, from capture to running code, around what a call of a graph makes that it lacks, and
around the first use of ``mixbackend``'s names.
Loading and compiling make hundreds of thousands of values that stay until they are done. Python walks all of them, and
all that was there before, a dozen times meanwhile, which takes a tenth to a fifth of the time. Young garbage is
collected as ever, and it is nearly all that there is.
Invariants: the process has the thresholds it had when nobody compiles any more, unless somebody else set others
meanwhile. Several threads may compile at once.
Non-goals: collectors without generations of their own, which ignore the threshold.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 2**31 - 1

_lock = threading.Lock()
_waiting: list[int] = []
"""The threshold to go back to, once for each that compiles."""


@contextmanager
def full_collections_later() -> Iterator[None]:
    """No full collection begins by itself in here; those that somebody asks for happen."""
    with _lock:
        young, middle, old = gc.get_threshold()
        _waiting.append(_waiting[-1] if _waiting else old)
        gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        with _lock:
            before = _waiting.pop()
            young, middle, old = gc.get_threshold()
            if not _waiting and old == _NEVER:
                gc.set_threshold(young, middle, before)
