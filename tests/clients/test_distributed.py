"""Two gloo processes, default ``auto()``: DDP, FSDP2, tensor parallel and pipeline stages are as in eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from two_ranks import hold_equal_to_eager


@pytest.mark.nightly
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "tensor", "pipeline"])
def test_two_processes_agree_with_eager(kind):
    hold_equal_to_eager(Path(__file__).with_name("distributed_worker.py"), kind)
