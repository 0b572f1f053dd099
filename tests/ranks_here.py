"""Ranks of one job, one after the other in this process: groups whose other ranks are not there.

No collective could end in such a group, so a test that ends called none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as distributed
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend "fake"


@contextmanager
def as_rank(rank: int, store: distributed.Store, ranks: int = 2) -> Iterator[None]:
    """Be a rank of a job that has this store."""
    distributed.init_process_group("fake", store=store, rank=rank, world_size=ranks)
    try:
        yield
    finally:
        distributed.destroy_process_group()
