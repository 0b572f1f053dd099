"""Random programs of fixed seeds, in all settings, are what eager makes of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from mixbackend.benchmarks.fuzz.judging import judge, quiet, valid_program
from mixbackend.benchmarks.fuzz.settings import SETTINGS

SEEDS = {"default": range(15), "codegen": range(40, 65), "mixture": range(110, 125)}


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    quiet()
    yield
    logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)
    torch._dynamo.reset()


@pytest.mark.parametrize("setting", SETTINGS)
def test_programs(setting: str) -> None:
    wrong = []
    for seed in SEEDS[setting]:
        verdict = judge(valid_program(seed), setting, seed)
        if verdict.status == "ours":
            wrong.append(f"seed {seed}: {verdict.findings[0]}")
    assert wrong == []
