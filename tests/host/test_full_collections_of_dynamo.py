"""Full collections of garbage wait from the first line that Dynamo traces to the running code."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch

import mixbackend
from mixbackend.host.full_collections import compilation_ends, compilation_starts, full_collections_later


@pytest.fixture
def before():
    yield gc.get_threshold()
    compilation_ends()


@pytest.fixture
def traced() -> list[tuple[int, int, int]]:
    """Thresholds that a traced function sees."""
    seen: list[tuple[int, int, int]] = []
    torch._dynamo.reset()
    mixbackend.auto()
    torch._dynamo.callback.on_compile_start(lambda *_: seen.append(gc.get_threshold()))
    yield seen


def test_they_wait_while_dynamo_traces(before: Any, traced: Any) -> None:
    compiled = torch.compile(lambda value: value + 1.0, backend="eager")
    compiled(torch.ones(3))
    assert len(traced) == 1 and traced[0][2] > before[2]
    assert gc.get_threshold() == before


def test_they_come_back_where_tracing_fails(before: Any, traced: Any) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no code")

    with pytest.raises(Exception, match="no code"):
        torch.compile(lambda value: value + 2.0, backend=fails)(torch.ones(3))
    assert len(traced) == 1
    assert gc.get_threshold() == before


def test_dynamo_may_end_in_another_thread(before: Any) -> None:
    compilation_starts()
    with full_collections_later():
        ending = threading.Thread(target=compilation_ends)
        ending.start()
        ending.join()
        assert gc.get_threshold() != before
    assert gc.get_threshold() == before


def test_an_end_without_a_start_changes_nothing(before: Any) -> None:
    compilation_ends()
    assert gc.get_threshold() == before
