"""Where measuring a backend stopped: values that are kept beside its rates, for a later process to go on.

Place: written by calibration, stored and read by ``records``.
Invariants: frozen values; nothing here measures.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixbackend.contracts import BackendRates
from mixbackend.contracts.rate_rows import CONSTANT, wider_rows


@dataclass(frozen=True, slots=True)
class Fixed:
    """Seconds that do not depend on the work.

    Attributes:
        entry_s, crossing_s: as of ``BackendRates``.
        loop_s, product_s, convolution_s: of one op inside a region.
        rows: seconds of one op, by row without ``constant``, where kinds of convolutions differ.
    """

    entry_s: float
    crossing_s: float
    loop_s: float
    product_s: float
    convolution_s: float
    rows: tuple[tuple[str, float], ...] = ()

    def overhead(self, row: str) -> float:
        """Of an op of this row, or of the nearest wider one that is known."""
        op_class, known = row.partition("/")[0], dict(self.rows)
        if op_class in ("matmul", "attention"):
            return self.product_s
        wider = wider_rows(row.removesuffix(f"/{CONSTANT}"))
        usual = self.convolution_s if op_class == "convolution" else self.loop_s
        return next((known[item] for item in wider if item in known), usual)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Where an earlier calibration of a backend stopped.

    Attributes:
        rates: as far as they were learned.
        fixed: what the structural probes told.
        left: labels of the stated probes that are still to be run.
    """

    rates: BackendRates
    fixed: Fixed
    left: tuple[str, ...]
