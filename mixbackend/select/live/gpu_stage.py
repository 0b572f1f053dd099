"""The stage of one entry on a GPU: programs are recorded and replayed in trees of their own.

Place: a ``rehearsed_calls.Stage``, made by ``compile.tried_entry``. Method: values of a call that is about to run are
run by a program's own recording for trials. The inputs of that are copied as those of a user's recording are; what the
graph writes is put back before each run and at the end. Turns are timed by the GPU's marks (``gpu_block``).
Invariants: the thread's own recordings are not touched.
Units: seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mixbackend.contracts.torch_compat import GraphsApart
from mixbackend.execute.run_function import Run
from mixbackend.execute.state_restore import repeated
from mixbackend.select.gpu_block import STEADY_CALLS, seconds_in_block
from mixbackend.select.live.preparation import Contender


class GpuStage:
    """See the module's docstring.

    Args:
        device: number of the GPU.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._apart = GraphsApart(device)
        self._calls: Counter[int] = Counter()
        self._runs: dict[int, Run] = {}

    def turn(self, number: int, contender: Contender, values: Sequence[Any]) -> float | None:
        """See ``rehearsed_calls.Stage``."""
        if number not in self._runs:
            self._runs[number] = contender.run if contender.apart is None else contender.apart()
        run = self._runs[number]
        with repeated(values, contender.changes) as call, self._apart.inside():
            if self._calls[number] < STEADY_CALLS:
                self._calls[number] += 1
                call.by(run)()
                return None
            return seconds_in_block(run, call, self._device)

    def end(self) -> None:
        """See ``rehearsed_calls.Stage``."""
        self._calls.clear()
        self._runs.clear()
        self._apart.end()
