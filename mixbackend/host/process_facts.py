"""Facts of this process: found once, kept as long as it lives, and forgotten by tests in one call.

Place: every module that keeps something for the whole process, whatever room it is in, says here how that is
forgotten.
Input: a function that finds a fact, or one that forgets it. Output: the fact, found at the first question.
Invariants: ``reset_for_tests`` leaves a process as if nothing had asked yet; what it does to machine and libraries is
undone where it can be. Nothing but tests calls it.
Non-goals: caches of pure functions, which hold in every process; what belongs to one configuration (``Environment``);
backends (``registry.isolated_registry``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

Value = TypeVar("Value")

_resets: list[Callable[[], object]] = []


def on_reset(forget: Callable[[], object]) -> None:
    """Say how something is forgotten that is kept for the whole process."""
    _resets.append(forget)


def process_fact(find: Callable[[], Value]) -> Callable[[], Value]:
    """Decorates a function: its answer is kept for the whole process."""
    kept = cache(find)
    on_reset(kept.cache_clear)
    return kept


def reset_for_tests() -> None:
    """Forget all that is kept for the whole process: what asks next is told as a new process is."""
    for forget in _resets:
        forget()
