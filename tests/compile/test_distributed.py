"""DDP and FSDP2 in two gloo processes: losses and gradients as in eager, one program on ranks whose costs differ, no
long waits, and a backend that fails on one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from two_ranks import hold_equal_to_eager


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_agree_with_eager(kind, tmp_path):
    hold_equal_to_eager(Path(__file__).with_name("distributed_worker.py"), kind, str(tmp_path))
