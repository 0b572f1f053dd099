"""What this process prints and writes while it compiles, and how much may leave eager: read from the environment.

Place: read once per environment; the stages' driver and the compile cache act on it.
Environment: ``MIXBACKEND_DEBUG`` 1 regions, 2 timing, 3 plan with refusals, 4 generated source, 5 every stage value;
``MIXBACKEND_DUMP=folder`` writes every stage value; ``MIXBACKEND_FUEL=n`` lets only the first n regions leave eager;
``MIXBACKEND_PASS_FUEL=n`` lets only the first n graph passes run of those that results are right without.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mixbackend.contracts.torch_compat import bisected_away, bisecting

REGIONS, PASSES = STEPS = ("regions", "passes")
"""What torch's ``CompilerBisector`` counts and switches off, where it is at this backend: fuel is out for it then."""


class Fuel:
    """Counts how many more regions may leave the fallback, or passes may run; unlimited if ``None``.

    Args:
        step: which of ``STEPS`` takes it.
    """

    def __init__(self, amount: int | None, step: str = REGIONS) -> None:
        self._amount, self._step = amount, step
        self._left = itertools.count() if amount is None else iter(range(amount))

    @property
    def limited(self) -> bool:
        """Whether it matters which caller takes first."""
        return self._amount is not None or bisecting()

    def take(self, told: Callable[[], str]) -> bool:
        """Whether one more may; ``told`` says what it is."""
        return next(self._left, None) is not None and not bisected_away(self._step, told)


@dataclass(frozen=True)
class DebugSettings:
    """What to print and write while compiling.

    Attributes:
        level: rung of the ladder, 0 is silent.
        dump: folder for stage values, ``None`` for none.
        fuel: how many regions may be compiled by backends other than the fallback, ``None`` for all.
        passes: how many more optional graph passes may run.
    """

    level: int = 0
    dump: Path | None = None
    fuel: int | None = None
    passes: Fuel = field(default_factory=lambda: Fuel(None, PASSES), compare=False)

    @staticmethod
    def from_environment() -> DebugSettings:
        """Read the variables that the module's docstring names."""
        names = ("DEBUG", "DUMP", "FUEL", "PASS_FUEL")
        level, dump, fuel, passes = (os.environ.get(f"MIXBACKEND_{name}", "") for name in names)
        return DebugSettings(
            int(level) if level.isdigit() else 0,
            Path(dump) if dump else None,
            int(fuel) if fuel.isdigit() else None,
            Fuel(int(passes) if passes.isdigit() else None, PASSES),
        )
