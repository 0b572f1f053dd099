"""Ranks of one job, one after the other in this process: groups whose other ranks are not there.

No collective could end in such a group, so a test that ends called none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as distributed
from regime_cases import WIDTH, function
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend "fake"


@contextmanager
def as_rank(rank: int, store: distributed.Store, ranks: int = 2) -> Iterator[None]:
    """Be a rank of a job that has this store."""
    distributed.init_process_group("fake", store=store, rank=rank, world_size=ranks)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def run(mixture: Any, rows: int = 8) -> None:
    """Compile a small graph, and hold it against eager."""
    value = torch.randn(rows, WIDTH)
    torch.testing.assert_close(torch.compile(function, backend=mixture)(value), function(value))


def owners(mixture: Any, graph: int = 0) -> set[str]:
    """The backends of a graph."""
    return {region["backend"] for region in mixture.report().to_dict()["graphs"][graph]["regions"]}


def told(mixture: Any) -> list[str]:
    """Events of what ranks agreed on, or could not."""
    return [event.detail for event in mixture.report().events if event.kind in ("ranks", "fallback")]
