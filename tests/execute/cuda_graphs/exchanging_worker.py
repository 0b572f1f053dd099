"""One of two gloo processes: runs a recorded graph with a collective in it; on rank 1 something goes wrong.

Collectives must be met by the other rank's: one that takes part once more or once less hangs here, or adds up values of
different calls. ``before`` and ``recording``: that is where rank 1's tree fails; ``recorded anew``: later;
``never recorded``: rank 1 runs all without graphs.
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as distributed

sys.path.insert(0, str(Path(__file__).parent))
from exchanging_graph import Counting, PlantedError, Tree, layer, recorded_layer

CALLS, ANEW = 8, 5


def main(kind: str, rank: int, port: str) -> None:
    """Hold each call against eager on both ranks' values."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    limit = datetime.timedelta(seconds=60)
    distributed.init_process_group("gloo", rank=rank, world_size=2, timeout=limit)
    failed: list[str] = []

    def wrong(when: str, call: int) -> None:
        place = {"recorded anew": ("recording", ANEW)}.get(kind, (kind, 2))
        if rank == 1 and (when, call) == place:
            failed.append(when)
            raise PlantedError(when)

    tree = Tree(wrong)
    backend = Counting(tree)
    with pytest.MonkeyPatch.context() as patch:
        graph, events = recorded_layer(patch, tree, backend)
        run = layer if rank == 1 and kind == "never recorded" else lambda value: graph([value])[0]
        values = torch.Generator().manual_seed(0)
        for call in range(CALLS):
            # Before the first one nothing is recorded.
            tree.again = call == ANEW and kind == "recorded anew"
            both = torch.randn(2, 4, generator=values)
            torch.testing.assert_close(run(both[rank]), torch.sigmoid(-both.sum(0)))
    assert bool(failed) is (rank == 1 and kind != "never recorded")
    if run is not layer:
        assert backend.exchanges == CALLS, backend.ran
        assert tree.calls == {"before": 2, "recording": 2, "recorded anew": ANEW}.get(kind, 0) or not failed
    print(f"{events}, equal to eager")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
