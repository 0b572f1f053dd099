"""Device models and rates as JSON for the database, and back.

A record of rates may hold where probing stopped (``left``, ``fixed``), for a later process to go on.
Invariants: reading checks every field; what does not fit counts as missing and is measured again. Records of the
processor's rates have no fields of accelerators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

from mixbackend.contracts import BackendRates, DeviceModel, HostRates, OpRate, Provenance
from mixbackend.contracts.rate_rows import is_rate_row
from mixbackend.cost.unfinished import Fixed, Unfinished

_RATES_VERSION = 10
_ACCELERATOR_VERSION = 11
"""Of the form and meaning of a backend's rates, on the processor and beside it; others are measured again."""
_PROCESSOR_VERSION, _DEVICE_VERSION = 1, 2
"""The same of processors' and accelerators' models."""
_NUMBERS = ("bytes_per_s", "cache_bytes", "cache_bytes_per_s", "launch_s")
_TRANSFER = ("transfer_s", "transfer_bytes_per_s")


def device_record(device: DeviceModel) -> dict[str, Any]:
    """JSON form of a device model."""
    return {
        "device": device.device,
        "flops_per_s": dict(device.flops_per_s),
        "threads": device.threads,
        "provenance": device.provenance,
        "version": _PROCESSOR_VERSION if device.place.type == "cpu" else _DEVICE_VERSION,
        **{name: getattr(device, name) for name in (*_NUMBERS, *(_TRANSFER if device.transfer_s else ()))},
    }


def read_device(record: Mapping[str, Any] | None) -> DeviceModel | None:
    """A device model from its JSON form; ``None`` if it does not fit."""
    if record is None:
        return None
    try:
        rates = tuple((str(dtype), _positive(rate)) for dtype, rate in record["flops_per_s"].items())
        beside = not str(record["device"]).startswith("cpu")
        if record["version"] != (_DEVICE_VERSION if beside else _PROCESSOR_VERSION):
            return None
        numbers = {name: _positive(record[name]) for name in (*_NUMBERS, *(_TRANSFER if beside else ()))}
        device = DeviceModel(
            device=str(record["device"]),
            flops_per_s=rates,
            threads=int(record["threads"]),
            provenance=_provenance(record["provenance"]),
            **numbers,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return device if "float32" in record["flops_per_s"] else None


def rates_record(rates: BackendRates) -> dict[str, Any]:
    """JSON form of a backend's rates."""
    return {
        **({} if rates.host is None else {"host": asdict(rates.host)}),
        "version": _RATES_VERSION if rates.host is None else _ACCELERATOR_VERSION,
        "backend": rates.backend,
        "entry_s": rates.entry_s,
        "crossing_s": rates.crossing_s,
        "switch_s": rates.switch_s,
        "weight_scale": rates.weight_scale,
        "memory_scale": rates.memory_scale,
        "provenance": rates.provenance,
        "rates": [[name, dtype, *_row(rate)] for name, dtype, rate in rates.rates],
    }


def unfinished_record(unfinished: Unfinished | None) -> dict[str, Any]:
    """What to keep beside the rates of a backend of which not all is known."""
    return {} if unfinished is None else {"left": list(unfinished.left), "fixed": asdict(unfinished.fixed)}


def read_unfinished(record: Mapping[str, Any] | None) -> Unfinished | None:
    """Where probing stopped; ``None`` if all is known, or if the record does not fit."""
    rates = read_rates(record)
    if record is None or rates is None or not record.get("left"):
        return None
    try:
        return Unfinished(rates, _read_fixed(record["fixed"]), tuple(map(str, record["left"])))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _read_fixed(record: Any) -> Fixed:
    rows = tuple((str(row), _at_least_zero(seconds)) for row, seconds in record.get("rows", ()))
    plain = {str(name): _at_least_zero(seconds) for name, seconds in record.items() if name != "rows"}
    return Fixed(**plain, rows=rows)


def read_rates(record: Mapping[str, Any] | None) -> BackendRates | None:
    """A backend's rates from their JSON form; ``None`` if it does not fit."""
    if record is None:
        return None
    if record.get("version") != (_RATES_VERSION if record.get("host") is None else _ACCELERATOR_VERSION):
        return None
    try:
        return BackendRates(
            backend=str(record["backend"]),
            entry_s=_at_least_zero(record["entry_s"]),
            crossing_s=_at_least_zero(record["crossing_s"]),
            switch_s=_at_least_zero(record["switch_s"]),
            weight_scale=_positive(record["weight_scale"]),
            memory_scale=_positive(record["memory_scale"]),
            rates=tuple(_read_row(row) for row in record["rates"]),
            provenance=_provenance(record["provenance"]),
            host=None if record.get("host") is None else _read_host(record["host"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _read_host(record: Any) -> HostRates:
    rows = tuple((str(row), _at_least_zero(seconds)) for row, seconds in record["rows"])
    entry, crossing, op = (_at_least_zero(record[name]) for name in ("entry_s", "crossing_s", "op_s"))
    return HostRates(entry, crossing, op, rows)


def _row(rate: OpRate) -> list[Any]:
    least = [rate.least_s] if rate.least_s else []
    return [rate.overhead_s, rate.flops_per_s, rate.provenance, *least]


def _read_row(row: Any) -> Any:
    name, dtype, overhead, flops, provenance, *least = row
    if not isinstance(name, str) or not is_rate_row(name) or len(least) > 1:
        raise ValueError(f"{name!r} is no row of a rate table")
    least_s = _at_least_zero(least[0]) if least else 0.0
    return name, str(dtype), OpRate(_at_least_zero(overhead), _positive(flops), _provenance(provenance), least_s)


def _positive(value: Any) -> float:
    number = float(value)
    if not 0.0 < number < float("inf"):
        raise ValueError(f"{value!r} is not a positive number")
    return number


def _at_least_zero(value: Any) -> float:
    return 0.0 if value == 0 else _positive(value)


def _provenance(value: Any) -> Provenance:
    if value not in get_args(Provenance):
        raise ValueError(f"{value!r} is no provenance")
    return value
