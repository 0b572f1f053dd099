"""What a rank of the distributed benchmark shall do, as a value that goes through a pipe.

Place: below ``launch``, which sends it, and ``rank``, which reads it; importing it imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Size = Literal["true", "small"]
"""Of the models: true ones for GPUs, small ones for processors."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a rank shall do.

    Attributes:
        case, size: of ``cases.CASES``.
        peer: ``eager``, or a backend, with a mode of ``torch.compile`` behind a colon.
        rank, ranks: in the job.
        gpu: number of its GPU, ``None`` on processors.
        port: of the job's store.
        cache: folder of the mixture's cache.
        settle_s: seconds until the mixture must be settled.
        block_s, blocks: length and number of what is timed.
        limit_s: seconds that a collective may take.
    """

    case: str
    size: Size
    peer: str
    rank: int
    ranks: int
    gpu: int | None
    port: int
    cache: str
    settle_s: float
    block_s: float
    blocks: int
    limit_s: float
