"""Each client gets a mixture of its own, and leaves nothing compiled behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config

enable_torchvision()  # transformers imports it, and it does where torch is another build


@pytest.fixture
def mixture() -> Iterator[Mixture]:
    """What ``mixbackend.auto()`` makes, for one test alone."""
    torch.compiler.reset()
    yield Mixture(load_config(None))
    torch.compiler.reset()


@pytest.fixture
def estimated() -> Iterator[Mixture]:
    """The same without the comparison at the first call, for models that take others long to compile."""
    torch.compiler.reset()
    yield Mixture(load_config({"select": "off"}))
    torch.compiler.reset()
