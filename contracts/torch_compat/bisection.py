"""Torch's bisector of compilers: steps of ours that it may switch off, counted.

Place: a part of the door; see ``contracts.torch_compat``. Input: the name of a step, and what it does. Output: whether
it is to be left out in this run.
Invariants: without a bisection nothing is counted, and nothing of torch is loaded that ``torch.compile`` does not load.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BACKEND = "mixbackend"
_MODULE = "torch._inductor.compiler_bisector"


@dataclass(frozen=True, slots=True)
class Bisected:
    """What a bisection has found.

    Attributes:
        backend: the first one of torch's list with which it fails.
        step: of the backend; ``""`` where no step by itself is at fault.
        number: how many of its kind come before it.
        text: what it is.
    """

    backend: str
    step: str
    number: int
    text: str


def join_bisection(steps: Sequence[str]) -> None:
    """Let torch's bisector look at our steps, in this order, after all backends of its own."""
    from torch._inductor.compiler_bisector import BACKENDS, BisectSubsystem

    BACKENDS.setdefault(_BACKEND, [BisectSubsystem(step) for step in steps])


def bisecting() -> bool:
    """Whether torch's bisector is at this backend."""
    bisector = _bisector()
    return bisector is not None and bisector.bisection_enabled and bisector.get_backend() == _BACKEND


def bisected_away(step: str, told: Callable[[], str]) -> bool:
    """Whether torch's bisector leaves this step out; counts it.

    Args:
        told: what it is, for the one that is found.
    """
    bisector = _bisector()
    return bisector is not None and bool(bisector.disable_subsystem(_BACKEND, step, told))


def bisected(succeeds: Callable[[Mapping[str, str]], bool]) -> Bisected | None:
    """Have torch's bisector find the step that makes other processes fail.

    Its own command line deletes torch's cache folder; this one takes a folder for what it remembers.

    Args:
        succeeds: runs one, with these variables in its environment besides.

    Returns:
        ``None`` where it succeeds with every backend.
    """
    from torch._inductor.compiler_bisector import CompilerBisector

    with tempfile.TemporaryDirectory(prefix="mixbackend-bisect-", ignore_cleanup_errors=True) as folder:
        CompilerBisector.in_process_cache = folder

        def fine() -> bool:
            backend = CompilerBisector.get_backend() or ""
            return succeeds({"TORCHINDUCTOR_CACHE_DIR": folder, "TORCH_COMPILE_BACKEND": backend})

        found = CompilerBisector.do_bisect(fine)
    if found is None:
        return None
    return Bisected(found.backend, found.subsystem or "", found.bisect_number or 0, found.debug_info or "")


def _bisector() -> Any:
    """Torch's class, once ``torch.compile`` has loaded it."""
    module = sys.modules.get(_MODULE)
    return None if module is None else module.CompilerBisector
