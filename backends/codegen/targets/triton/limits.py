"""What a block can hold, and what kernels are planned for: known to the target, and to all code that plans.

Place: apart from ``plan``, so that a target says what it is like without importing what plans.
"""

from __future__ import annotations

from dataclasses import dataclass

RESIDENT = 16384
"""Points of a row that the registers of a block hold, a few values each."""

LEAST_COLUMNS = 16
"""Columns of a block that are neighbours at least: whole sectors of memory."""

LARGEST_INDEX = 2**31 - 2**17
"""What 32 bits count up to, less the points by which the last block may be too large."""


@dataclass(frozen=True)
class Settings:
    """What plans depend on beside the kernel.

    Attributes:
        units: processors of the hardware, each of which runs several blocks.
        shared: bytes of shared memory that a block may have.
        tf32: whether torch's flags let factors of products in float32 be rounded to TF32.
    """

    units: int
    shared: int = 96 * 1024
    tf32: bool = False
