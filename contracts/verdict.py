"""Answers of a backend about one op: never a bare bool.

Place: made by backends in ``judge``; every refusal is kept and ends in the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union, get_args

RefusalCode = Literal[
    "unknown-op",  # the backend has no rule for this operator
    "dtype",  # an input or output dtype is outside what it takes
    "device",  # a tensor lives on a device it does not serve
    "rank",  # too many or too few dimensions
    "layout",  # strides, layout or memory format it cannot take
    "argument",  # an argument has a value it does not implement
    "dynamic-shape",  # needs sizes to be known when compiling
    "data-dependent",  # output shape depends on values
    "phase",  # not in this phase (inference only, say)
    "random",  # would not keep eager's random stream
    "deterministic",  # may give other bits for equal inputs, and torch is told to use deterministic algorithms
    "effect",  # mutates, communicates or has another effect
    "higher-order",  # carries subgraphs
    "decomposition",  # some op of its decomposition is refused
    "declined",  # could run it, but does not want to
    "region-too-small",  # region below the size worth an entry
    "region-condition",  # region lacks something it must contain, or contains what it must not
    "preference",  # the user's configuration forbids it
    "not-allowed",  # backend is not in the user's list
    "unavailable",  # backend cannot be used on this machine
    "quarantined",  # failed, or gave wrong numbers, on a region with this op
    "backend-error",  # the backend raised while judging
]
REFUSAL_CODES: tuple[str, ...] = get_args(RefusalCode)


@dataclass(frozen=True, slots=True)
class Supported:
    """The backend can run the op with correct results.

    Attributes:
        cost: seconds of the op inside a region of this backend, without region entry and without moving tensors across
            the region's boundary; ``None`` leaves it to the planner's cost model.
    """

    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The backend cannot, or does not want to, run the op.

    Attributes:
        code: one of ``REFUSAL_CODES``.
        detail: the failing test in words, with what was seen and what is needed.
    """

    code: RefusalCode
    detail: str = ""

    def __post_init__(self) -> None:
        if self.code not in REFUSAL_CODES:
            raise ValueError(f"{self.code!r} is not a refusal code; the codes are {', '.join(REFUSAL_CODES)}")


Verdict = Union[Supported, Unsupported]
