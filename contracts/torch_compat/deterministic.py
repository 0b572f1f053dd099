"""Deterministic algorithms: torch's switch, as all of this project reads and sets it.

Place: a part of the door; see ``contracts.torch_compat``. Dynamo guards the switch, so that it is known when a graph is
compiled: ``describe`` reads it into ``OpGraph.deterministic``, and from there on it is a value like others.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch


def deterministic_asked() -> bool:
    """Whether equal inputs must give bitwise equal results; also where torch only warns of what cannot."""
    return torch.are_deterministic_algorithms_enabled()


def ask_deterministic(wanted: bool) -> None:
    """Set the switch in a process that works for another one: what is not deterministic raises no error there.

    A switch that is as wanted is not touched: inductor's keys hold whether torch would only warn.
    """
    if torch.are_deterministic_algorithms_enabled() != wanted:
        torch.use_deterministic_algorithms(wanted, warn_only=True)


@contextlib.contextmanager
def warned_at_most() -> Iterator[None]:
    """Let eager run what it has no deterministic kernel for, without a word: for references, which users never see."""
    if not torch.are_deterministic_algorithms_enabled():
        yield
        return
    with deterministic_without_a_word():
        yield


@contextlib.contextmanager
def deterministic_without_a_word() -> Iterator[None]:
    """The switch is set, without errors and warnings about what has no deterministic kernel. Torch fills memory that it
    allocates with NaN and the largest integers meanwhile."""
    asked, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(asked, warn_only=warns)
