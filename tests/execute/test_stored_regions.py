"""Regions that an earlier process compiled: taken from the store, or compiled again where that cannot be."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mixbackend.contracts import Backend, CompiledRegion, Region


@pytest.fixture
def storing(faulty: type[Any]) -> Callable[..., Backend]:
    """A backend whose artifacts are names; it knows what they name unless it is told to have forgotten."""

    class Storing(faulty):  # type: ignore[misc]
        name = "storing"

        def __init__(self, error: Exception | None = None) -> None:
            super().__init__()
            self.error = error
            self.loaded = 0

        def compile(self, region: Region) -> CompiledRegion:
            return replace(super().compile(region), artifact=b"a name")

        def load(self, region: Region, artifact: bytes) -> CompiledRegion:
            assert artifact == b"a name"
            if self.error is not None:
                raise self.error
            self.loaded += 1
            return super().compile(region)

    return Storing


def call(make_mixture: Any, backend: Backend) -> None:
    """The first call of a process."""
    torch._dynamo.reset()
    value = torch.randn(8)
    result = torch.compile(lambda item: torch.relu(item) + 1.0, backend=make_mixture(backend))(value)
    torch.testing.assert_close(result, torch.relu(value) + 1.0)


def test_a_later_process_loads(make_mixture: Any, storing: Any) -> None:
    first, second = storing(), storing()
    call(make_mixture, first)
    call(make_mixture, second)
    assert (first.loaded, second.loaded) == (0, 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("error", "told"), [(FileNotFoundError("cleared"), 0), (ValueError("not mine"), 1)])
def test_what_cannot_be_loaded_is_compiled_again(
    make_mixture: Any, storing: Any, caplog: pytest.LogCaptureFixture, error: Exception, told: int
) -> None:
    """Only what is damaged is worth a line in the log: what an artifact refers to may be cleared at any time."""
    call(make_mixture, storing())
    with caplog.at_level(logging.WARNING, logger="mixbackend"):
        failing = storing(error)
        call(make_mixture, failing)
    assert len(failing.compiled) == 1
    assert len([record for record in caplog.records if "cannot load it" in record.getMessage()]) == told
    third = storing()
    call(make_mixture, third)
    assert third.loaded == 1, "it was stored again"
