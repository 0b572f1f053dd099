"""What compiling costs: seconds per region and per op.

Place: stated by backends, read by ``partitioner.amortized`` where seconds of compiling count (``objective:
compile_time``).
Units: seconds of wall time on a machine that compiles nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BuildSeconds:
    """How long a backend takes to compile, about, with nothing in any cache.

    Attributes:
        region_s: one region, without its ops: starting a compiler, opening a session.
        op_s: each op more that the region holds, views left out.
    """

    region_s: float = 0.0
    op_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.region_s >= 0.0 and self.op_s >= 0.0):
            raise ValueError(f"{self} is no time")

    def of(self, ops: int) -> float:
        """Seconds of building one region of so many ops."""
        return self.region_s + self.op_s * ops
