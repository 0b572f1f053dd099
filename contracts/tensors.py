"""What is known of a tensor before it exists.

Place: on both ends of every op, and on every boundary of a region.
Invariants: immutable, hashable, printed completely and deterministically.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mixbackend.contracts.sizes import Size, hint_of, is_symbolic


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape, stride, dtype and device of a tensor.

    Attributes:
        shape: sizes, outermost first; ``()`` for a scalar tensor.
        stride: in elements, one per dimension; meaningful only where the size is over 1 and the tensor is not empty.
        dtype, device: as torch has them.
    """

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def dynamic(self) -> bool:
        """Whether any size is symbolic."""
        return any(is_symbolic(size) for size in self.shape)

    def elements(self) -> int:
        """Number of elements, by hints where sizes are symbolic."""
        return math.prod(hint_of(size) for size in self.shape)

    def bytes(self) -> int:
        """Bytes of its elements, by hints where sizes are symbolic (not the bytes of its storage)."""
        return self.elements() * self.dtype.itemsize

    def contiguous(self) -> bool:
        """Whether it is laid out row-major without gaps, as far as the traced strides show (by hints)."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            extent = hint_of(size)
            if extent == 0:
                return True
            if extent != 1 and hint_of(stride) != expected:
                return False
            expected *= extent
        return True

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        shape = "x".join(str(size) for size in self.shape)
        stride = ",".join(str(step) for step in self.stride)
        return f"{dtype}[{shape}]({stride})@{self.device}"
