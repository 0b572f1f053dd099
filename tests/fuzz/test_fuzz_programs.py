"""Random programs of fixed seeds, in all settings, are what eager makes of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from mixbackend.benchmarks.fuzz.judging import judge, quiet, valid_program
from mixbackend.benchmarks.fuzz.settings import SETTINGS

SEEDS = {"default": range(20), "codegen": range(20, 60), "mixture": range(50, 90), "live": range(90, 100)}
PARTS = [
    (setting, SEEDS[setting][first : first + 10]) for setting in SETTINGS for first in range(0, len(SEEDS[setting]), 10)
]
LONGEST = 4
"""Programs of few lines are cheap; long ones are for a campaign (docs/how-to/fuzzing.md)."""


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    quiet()
    yield
    logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("setting", "seeds"), PARTS, ids=str)
def test_programs(setting: str, seeds: range) -> None:
    wrong = []
    for seed in seeds:
        verdict = judge(valid_program(seed, LONGEST), setting, seed)
        # Which challengers come up is chance: that one was refuted is its backend's fault, and costs no call.
        findings = [item for item in verdict.findings if setting != "live" or item.kind != "event"]
        if verdict.status == "ours" and findings:
            wrong.append(f"seed {seed}: {findings[0]}")
    assert wrong == []
