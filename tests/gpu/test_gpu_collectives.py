"""Collectives inside of CUDA graphs, on two GPUs of one host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from two_ranks import hold_equal_to_eager

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["tensor", "functional", "gloo", "fails", "moves", "alone"])
def test_two_ranks_agree_with_eager(kind):
    if torch.cuda.device_count() < 2 or not torch.distributed.is_nccl_available():
        pytest.skip("two GPUs and NCCL are needed")
    hold_equal_to_eager(Path(__file__).with_name("collectives_worker.py"), kind)
