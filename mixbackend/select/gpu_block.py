"""A block of calls on a GPU, timed by the GPU's own marks.

Place: below ``comparison_gpu`` and ``live.gpu_stage``. Input: a program, a call that may be repeated. Output: seconds.
Units: seconds.
"""

from __future__ import annotations

import torch

from mixbackend.calibrate.timing import seconds_by_marks
from mixbackend.execute.run_function import Run
from mixbackend.execute.state_restore import RepeatedCall

BLOCK_S = 0.025
"""Calls between two marks: a mark costs about what a small kernel does."""
STEADY_CALLS = 6
"""Until a program is what it stays: verified, repaired if need be, warmed up, recorded, replayed."""
_FEWEST_CALLS = 3


def seconds_in_block(run: Run, call: RepeatedCall, device: int) -> float:
    """Mean seconds of a run in a block of them.

    Args:
        run: the program.
        call: put back before each run, outside of the marks.
        device: number of the GPU.
    """
    again = call.by(run)
    before = None if call.changes_nothing else again.put_back
    with torch.cuda.device(device):
        once = seconds_by_marks(again.run, _FEWEST_CALLS, before) / _FEWEST_CALLS
        count = int(BLOCK_S / max(once, 1e-7))
        return once if count <= _FEWEST_CALLS else seconds_by_marks(again.run, count, before) / count
