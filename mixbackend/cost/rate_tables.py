"""Tables of rates of machines as files: the format, and those that are shipped.

Place: above ``records``; below the cost model, which scales a table by the look at the machine (``scaled_rates``), and
below ``calibrate.exporting``, which writes one. Input: JSON text. Output: ``Machine``.
Form: ``{"format", "family", "machines": [machine]}``. A machine has a device model, its look, and entries of backends;
an entry has the library's major version, its rates (as ``records`` keeps them), seconds of building one small region
and of each op more, and its relative error. Every row says where it is from: the key of one of the machine's sources,
``measured`` or ``documented``, and its relative error.
Invariants: reading checks every field; a file that does not fit is an error that names the place, since it is ours or
was given by name. A file is read when its family is asked for.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

from mixbackend.contracts import BackendRates, DeviceModel, OpRate, RateTableError
from mixbackend.contracts.build_seconds import BuildSeconds
from mixbackend.cost.families import FAMILIES, Family
from mixbackend.cost.look import Look
from mixbackend.cost.records import device_record, rates_record, read_device, read_rates
from mixbackend.cost.switches import TABLES

FORMAT = 1
Mark = Literal["measured", "documented"]

_FOLDER = "mixbackend.cost.tables"


@dataclass(frozen=True, slots=True)
class Told:
    """Where a row is from.

    Attributes:
        source: key of one of the machine's sources.
        mark: whether it was measured there.
        error: relative, of seconds estimated by it.
    """

    source: str
    mark: Mark
    error: float


@dataclass(frozen=True)
class Entry:
    """One backend on one machine.

    Attributes:
        rates: as on that machine.
        version: of the library behind the backend.
        build: seconds of building a region there.
        error: relative, of seconds estimated by these rates.
        told: where each row of the rates is from, in their order.
    """

    rates: BackendRates
    version: str
    build: BuildSeconds
    error: float
    told: tuple[Told, ...]

    def error_of(self, dtypes: Iterable[str]) -> float:
        """The relative error of a graph with these dtypes: that of a dtype is its best row's."""
        by_dtype: dict[str, float] = {}
        for (_, dtype, _), told in zip(self.rates.rates, self.told, strict=True):
            by_dtype[dtype] = min(told.error, by_dtype.get(dtype, told.error))
        return max((by_dtype.get(dtype, self.error) for dtype in dtypes), default=self.error)


@dataclass(frozen=True)
class Machine:
    """One machine of a family.

    Attributes:
        maker: of the processor or GPU.
        device: as the roofline sees it.
        look: at it, what others are held against.
        mark, error: of the device's figures.
        sources: texts by key.
        entries: of backends; those that have none go by their own priors.
    """

    maker: str
    device: DeviceModel
    look: Look
    mark: Mark
    error: float
    sources: Mapping[str, str]
    entries: tuple[Entry, ...]

    def entry(self, backend: str) -> Entry | None:
        """Of a backend, by name."""
        return next((item for item in self.entries if item.rates.backend == backend), None)

    @property
    def product(self) -> str:
        """The device's product, without torch's name of it."""
        return self.device.device.partition(" ")[2]


def tables_of(family: Family) -> tuple[Machine, ...]:
    """The machines of a family: of the user's own file, else those that come with this package."""
    return _read_file(family, os.environ.get(TABLES, ""))


@cache
def _read_file(family: Family, folder: str) -> tuple[Machine, ...]:
    own = Path(folder, f"{family}.json")
    file = own if folder and own.is_file() else files(_FOLDER).joinpath(f"{family}.json")
    return read_table(file.read_text(encoding="utf-8"), str(file), family) if file.is_file() else ()


def major(version: str) -> str:
    """What of a version decides which kernels there are: its first two numbers, wherever they stand in the text."""
    found = re.search(r"\d+(\.\d+)?", re.sub(r"\([^)]*\)", "", version))
    return found.group() if found else version


# --- writing ---------------------------------------------------------------------------------------------------------


def with_machine(path: Path, family: Family, machine: Machine) -> str:
    """Text of a family's file with one machine added, in place of an earlier state of the same."""
    known = read_table(path.read_text(encoding="utf-8"), str(path), family) if path.exists() else ()
    key = (machine.product, machine.device.threads)
    kept = [item for item in known if (item.product, item.device.threads) != key]
    return table_text(family, [*kept, machine])


def table_text(family: Family, machines: Sequence[Machine]) -> str:
    """A file's text: a line for each row."""
    value = {"format": FORMAT, "family": family, "machines": [_machine_record(item) for item in machines]}
    return _lines(value, 0) + "\n"


def _machine_record(machine: Machine) -> dict[str, Any]:
    return {
        "maker": machine.maker,
        "mark": machine.mark,
        "error": machine.error,
        "sources": dict(machine.sources),
        "device": device_record(machine.device),
        "look": asdict(machine.look),
        "backends": [_entry_record(item) for item in machine.entries],
    }


def _entry_record(entry: Entry) -> dict[str, Any]:
    record = rates_record(replace(entry.rates, rates=()))
    rows = [
        {
            "row": row,
            "dtype": dtype,
            "overhead_s": rate.overhead_s,
            "flops_per_s": rate.flops_per_s,
            **({"least_s": rate.least_s} if rate.least_s else {}),
            **asdict(told),
        }
        for (row, dtype, rate), told in zip(entry.rates.rates, entry.told, strict=True)
    ]
    whole = {"version": entry.version, "error": entry.error, "build": asdict(entry.build)}
    return {"backend": record.pop("backend"), **whole, "rates": record, "rows": rows}


def _lines(value: Any, depth: int) -> str:
    """JSON with a line for each member down to rows, which stay in one line."""
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict) and any(isinstance(item, (dict, list)) for item in value.values()):
        members = (f"{json.dumps(name)}: {_lines(item, depth + 1)}" for name, item in value.items())
        return "{" + inner + f",{inner}".join(members) + outer + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[" + inner + f",{inner}".join(_lines(item, depth + 1) for item in value) + outer + "]"
    return json.dumps(value)


# --- reading ---------------------------------------------------------------------------------------------------------


def read_table(text: str, name: str, family: Family | None = None) -> tuple[Machine, ...]:
    """The machines of a file.

    Args:
        text: of the file.
        name: of the file, for errors.
        family: that it must be of; any by default.

    Raises:
        RateTableError: something in it does not fit.
    """
    place = "the file"
    try:
        value = json.loads(text)
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r} is not {FORMAT}")
        if value["family"] not in FAMILIES or family not in (None, value["family"]):
            raise ValueError(f"family {value['family']!r} is not {family or ' or '.join(FAMILIES)}")
        machines = []
        for number, item in enumerate(value["machines"]):
            place = f"machine {number}"
            machines.append(_read_machine(item))
        return tuple(machines)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"this is no table of rates: {place}: {type(error).__name__}: {error}"
        raise RateTableError(what, name, "write it anew with mixbackend calibrate --export") from error


def _read_machine(value: Any) -> Machine:
    device = read_device(value["device"])
    if device is None:
        raise ValueError("its device does not fit")
    sources = {str(key): str(text) for key, text in value["sources"].items()}
    entries = tuple(_read_entry(item, sources) for item in value["backends"])
    if len({item.rates.backend for item in entries}) < len(entries):
        raise ValueError("a backend has two entries")
    look = Look.read(value["look"])
    return Machine(str(value["maker"]), device, look, _mark(value["mark"]), _error(value["error"]), sources, entries)


def _read_entry(value: Any, sources: Mapping[str, str]) -> Entry:
    told, rows = [], []
    for item in value["rows"]:
        one = Told(str(item["source"]), _mark(item["mark"]), _error(item["error"]))
        if one.source not in sources:
            raise ValueError(f"{value['backend']}: {one.source!r} is none of the sources {sorted(sources)}")
        told.append(one)
        numbers = item["overhead_s"], item["flops_per_s"], "prior"
        rows.append([item["row"], item["dtype"], *numbers, *([item["least_s"]] if item.get("least_s") else [])])
    rates = read_rates({**value["rates"], "backend": value["backend"], "rates": rows})
    if rates is None:
        raise ValueError(f"the rates of {value['backend']!r} do not fit")
    build = BuildSeconds(**{str(name): float(seconds) for name, seconds in value["build"].items()})
    return Entry(_as_shipped(rates), str(value["version"]), build, _error(value["error"]), tuple(told))


def _as_shipped(rates: BackendRates) -> BackendRates:
    """What was probed on another machine is none here."""
    rows = tuple((row, dtype, OpRate(r.overhead_s, r.flops_per_s, "prior", r.least_s)) for row, dtype, r in rates.rates)
    return replace(rates, rates=rows, provenance="prior")


def _mark(value: Any) -> Mark:
    if value not in get_args(Mark):
        raise ValueError(f"{value!r} is neither of {get_args(Mark)}")
    return value  # type: ignore[no-any-return]


def _error(value: Any) -> float:
    number = float(value)
    if not 0.0 < number < 10.0:
        raise ValueError(f"{value!r} is no relative error")
    return number
