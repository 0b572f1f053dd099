"""Uncounted writes: a region's writes into its inputs raise no version of theirs.

Place: around the run functions of ``execute.region_executor``. Torch counts one write for each input that a graph
writes, when the graph is done; what regions count in between would be found as stale saved tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixbackend.contracts.torch_compat import set_versions, versions_of
from mixbackend.execute.run_function import Run


def uncounted(run: Run, places: Sequence[int]) -> Run:
    """The same run function; inputs at these places have the versions afterwards that they had before."""
    if not places:
        return run

    def counting_nothing(inputs: list[Any]) -> Sequence[Any]:
        written = [inputs[place] for place in places]
        versions = versions_of(written)
        try:
            return run(inputs)
        finally:
            set_versions(written, versions)

    return counting_nothing
