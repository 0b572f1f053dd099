"""Whether tables are as good as own rates: ``mixbackend bench first-plans``.

Place: beside the model suite. Input: models. Output: a row for each, seconds of a call by the first plan from the table
of this machine's family over seconds of the one from this machine's own rates.
Method: with this machine's product left out of the table (or with it, ``keep_own``), an empty database and a look; and
with the rates that ``mixbackend calibrate`` left in the user's database. Nothing is compared at the first call. Both
run in turns, a process each.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixbackend import registry
from mixbackend.benchmarks.machine_rates import begin_anew
from mixbackend.benchmarks.one_model.accuracy import Phase
from mixbackend.benchmarks.one_model.protocol import MIXTURE, Request
from mixbackend.benchmarks.one_model.timing import Ratio, Timing, interleave, speedup
from mixbackend.contracts import MixbackendError
from mixbackend.cost.families import family_of
from mixbackend.cost.model import is_measured
from mixbackend.cost.rate_tables import TABLES, table_text, tables_of
from mixbackend.host.devices import device_name
from mixbackend.storage import Database

DEFAULT_MODELS = ("resnet18", "mobilenet_v2", "DistilBertForMaskedLM")


@dataclass(frozen=True)
class FirstPlans:
    """One model.

    Attributes:
        model: its name.
        ratio: seconds by the table over seconds by own rates; ``None`` where one of both has no figures.
        table, own: how they ran.
    """

    model: str
    ratio: Ratio | None
    table: Timing
    own: Timing


@dataclass(frozen=True)
class Wanted:
    """What is measured.

    Attributes:
        phase: inference or training.
        device: ``cpu`` or ``cuda``.
        rounds: turns of each plan.
        timeout_s: for one answer of a process.
        keep_own: leave this machine's product in the table.
    """

    phase: Phase
    device: str
    rounds: int
    timeout_s: float
    keep_own: bool


def measure(models: Sequence[str], wanted: Wanted, progress: Callable[[str], None]) -> list[FirstPlans]:
    """Measure every model.

    Raises:
        MixbackendError: this machine has no rates of its own.
    """
    if not is_measured(registry.resolve(), wanted.device, Database.open()):
        raise MixbackendError("this machine has no rates of its own", hint="run mixbackend calibrate first")
    rows = []
    with tempfile.TemporaryDirectory(prefix="mixbackend-first-plans-") as folder, _tables(Path(folder), wanted):
        for model in models:
            requests = {name: _request(model, wanted, Path(folder, f"{model}-{name}")) for name in ("table", "own")}
            done = interleave(requests, wanted.rounds, wanted.timeout_s, progress=lambda text: progress(text))
            rows.append(FirstPlans(model, speedup(done["table"], done["own"]), done["table"], done["own"]))
    return rows


def _request(model: str, wanted: Wanted, cache: Path) -> Request:
    cache.mkdir(mode=0o700)
    begin_anew(cache, with_rates=cache.name.endswith("-own"))
    configuration: Mapping[str, Any] = {
        "cache": {"dir": str(cache)},
        "select": "off",
        "verify": {"when": "off"},
    }
    return Request("speed", model, wanted.phase, MIXTURE, configuration, device=wanted.device)


@contextmanager
def _tables(folder: Path, wanted: Wanted) -> Iterator[None]:
    """Processes that are started read the family's table without this product."""
    name = device_name(wanted.device)
    family, before = family_of(name), os.environ.get(TABLES)
    kept = [item for item in tables_of(family) if wanted.keep_own or item.product != name.partition(" ")[2]]
    (folder / f"{family}.json").write_text(table_text(family, kept))
    os.environ[TABLES] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[TABLES]
        else:
            os.environ[TABLES] = before
