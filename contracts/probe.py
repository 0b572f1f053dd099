"""One probe: a tiny computation that is run and timed, as a value.

Place: what ``Backend.probes`` gives; ``probes`` has the standard ones, and ``mixbackend.calibrate`` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.contracts.opclass import OpClass


@dataclass(frozen=True, slots=True)
class Probe:
    """A tiny computation; its time tells a backend's rate for one class of ops.

    Attributes:
        op_class, dtype: what it is about (dtype as ``float32``); the row of the rate table that it fills is that of its
            heaviest op, see ``contracts.rate_rows``.
        function: plain torch code on the inputs; it is traced, compiled by the backend as one region and timed.
        inputs: builds the arguments; called with no arguments.
        flops: of one run, counted as the planner counts them.
        weights: positions of the arguments that are parameters.
        constants: positions of the arguments with values that are known when code is bound; a probe that has any is for
            backends that bind.
        least: whether it is so small that it tells the shortest time of its row (``OpRate.least_s``), and not the rate.
    """

    op_class: OpClass
    dtype: str
    function: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]]
    flops: float
    weights: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()
    least: bool = False
