"""Tensors while lowering: an index goes in, a scalar expression comes out.

Place: what rules take and return. A view is a tensor with another tensor's index, transformed: it costs nothing.
Invariants: ``at`` is pure and may be called with any index expressions in range; its result has the compute type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Expr, compute_dtype

Index = tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class StridedView:
    """Where a tensor lies inside a region input, in elements: enough to return it without computing anything."""

    input: str
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr


@dataclass(frozen=True)
class Tensor:
    """See the module's docstring.

    Attributes:
        sizes: one expression per dimension.
        dtype: as torch would store it.
        at: value at an index (one expression per dimension).
        strided: set if it is a strided view of a region input.
    """

    sizes: Index
    dtype: torch.dtype
    at: Callable[[Index], Expr]
    strided: StridedView | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    @property
    def compute(self) -> torch.dtype:
        """Type in which its values are computed."""
        return compute_dtype(self.dtype)
