"""Every command of these tests finds Dynamo as a new process does: eight compilations of one of torch's own functions
are its limit, and what comes after them runs in eager, without a plan."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
