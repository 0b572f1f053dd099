"""``mixbackend.calibrate()``: measure rates of this machine, for images and fleets.

Place: the public function, and the body of the command of that name; nothing else measures rates.
Input: a device type, a configuration. Output: rows in the database of the configuration's cache folder.
Invariants: on a machine that is not quiet nothing is measured, unless that is forced; then it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mixbackend import registry
from mixbackend.calibrate.calibration import calibrated_costs, foreign
from mixbackend.calibrate.prober import Report, log_note
from mixbackend.calibrate.quiet import why_busy
from mixbackend.configuration import load_config
from mixbackend.contracts import Backend, MixbackendError
from mixbackend.storage import Database

_logger = logging.getLogger("mixbackend.calibration")


@dataclass(frozen=True)
class Calibrated:
    """What was measured.

    Attributes:
        backends: that the configuration allows.
        database: which holds their rates.
        busy: why they may be wrong, ``""`` if the machine was quiet.
    """

    backends: tuple[Backend, ...]
    database: Database
    busy: str


def calibrate(
    device: str = "cpu",
    *,
    budget_s: float | None = None,
    config: Any = None,
    force: bool = False,
    report: Report = log_note,
    begin: Callable[[str, int], object] = lambda name, left: None,
) -> Calibrated:
    """Measure what is not known yet of this machine's rates.

    Args:
        device: ``cpu`` or ``cuda``.
        budget_s: seconds for all backends; the next run goes on where this one ends. By default a processor's have
            about twenty seconds each, and those of a GPU 45 together.
        config: as of ``auto``: which backends, which cache folder.
        force: measure although the machine is not quiet.
        report: told of each probe that did not run, with the reason.
        begin: told the name of each backend that is measured now, and how many come after it.

    Raises:
        MixbackendError: the machine is not quiet.
    """
    busy = why_busy()
    if busy and not force:
        hint = "wait until other programs are done, or force it (--force): rates may then be wrong"
        raise MixbackendError(f"the machine is not quiet: {busy}", hint=hint)
    if busy:
        _logger.warning("calibrating, although the machine is not quiet: %s", busy)
    given = load_config(config)
    backends = tuple(registry.resolution(given.backends, given.required_backends()).backends)
    database = Database.open(given.cache.dir)
    calibrated_costs(
        backends, device, database, report=report, isolated=foreign(backends), budget_s=budget_s, begin=begin
    )
    return Calibrated(backends, database, busy)
