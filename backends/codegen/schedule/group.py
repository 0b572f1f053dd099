"""Groups: stages that will be one kernel, and the loops they share.

Place: made by ``grouping``, turned into kernels by ``build``.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from mixbackend.backends.codegen.ir.stages import Loop, Stage, TensorType


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory: type and strides in elements."""

    type: TensorType
    strides: tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class Group:
    """Stages of one kernel.

    Attributes:
        outer: loops that all stages share, outermost first; every stage has them among its kept loops under these very
            index symbols. A tensor that is defined and read inside the group is read at the same outer point. In a
            scatter both the loop of the target and the update loop that alone writes it have that symbol. Loops of a
            scan along its axis, of a concatenation along its axis, of one value, or with a target of stride 0 are never
            outer.
        stages: in execution order.
        private: targets that nothing outside the group reads: they need no memory of their own, only scratch or
            registers. What is too large for scratch is not among them, even if only the group reads it.
    """

    outer: tuple[Loop, ...]
    stages: tuple[Stage, ...]
    private: frozenset[str]
