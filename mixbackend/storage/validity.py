"""Validity: which rows and artifacts can still be asked for on this machine.

Place: between storage and its cleaning, telling and archives. Input: fingerprints of the backends and names of the
devices. Output: for a row, the device that it is about and why it is out of date.
Invariants: nothing is out of date on another machine's device: its backends are not known here. What a process sets for
itself (threads, precision) makes no other backend: another process may set it so again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mixbackend.storage.entry import Label
from mixbackend.storage.tables import read_object

SEPARATOR = " | "
"""Between the parts of a rate's subject: backend, fingerprint, device, torch, threads."""

_OF_DEVICES = ("device", "look")
"""Kinds of rates that are of no backend."""

_SET_BY_PROCESS = re.compile(r"\b(threads|width|precision)[= ]\w+")


@dataclass(frozen=True)
class ThisMachine:
    """See the module's docstring.

    Attributes:
        fingerprints: of the backends that can be used here, by name.
        devices: names with products, the processor first.
        complete: whether a backend that is not named does not exist here; if not, nothing is said about it.
    """

    fingerprints: Mapping[str, str]
    devices: tuple[str, ...] = ()
    complete: bool = True

    def other_device(self, table: str, row: Mapping[str, Any]) -> str:
        """The device of another machine that a row is about; ``""`` if it is about one of this machine, or none."""
        device = device_of(table, row)
        return "" if not device or device in self.devices or not self.devices else device

    def stale(self, table: str, row: Mapping[str, Any]) -> str:
        """Why a row can never be asked for again; ``""`` if it can."""
        if self.other_device(table, row):
            return ""
        if table in ("decisions", "plans"):
            made_by = read_object(row["fingerprints"]) or {}
            return next(filter(None, (self.changed(name, str(made_by[name])) for name in sorted(made_by))), "")
        if table == "rates":
            backend, _, rest = row["subject"].partition(SEPARATOR)
            if row["kind"] in _OF_DEVICES:
                return ""
            return self.changed(backend, SEPARATOR.join(rest.split(SEPARATOR)[:-3]))
        return self.changed(row["backend"], row["fingerprint"])

    def stale_label(self, label: Label) -> str:
        """The same for an artifact."""
        if not label.backend or (label.device and self.devices and label.device not in self.devices):
            return ""
        return self.changed(label.backend, label.fingerprint)

    def changed(self, backend: str, fingerprint: str) -> str:
        """Why a backend no longer has a fingerprint; ``""`` if it has, or if nothing is known of it."""
        now = self.fingerprints.get(backend)
        if now is None:
            return f"backend {backend} is not here" if self.complete else ""
        return "" if _lasting(now) == _lasting(fingerprint) else f"{backend} is another one now"


def device_of(table: str, row: Mapping[str, Any]) -> str:
    """Name of the device that a row is about, ``""`` if it does not say."""
    if table != "rates":
        return str(row.get("device", ""))
    value = read_object(row["value"]) or {}
    parts = row["subject"].split(SEPARATOR)
    if row["kind"] in _OF_DEVICES:
        return str(value.get("device", parts[0]))
    # Torch and threads come last, the device before them; a fingerprint may hold the separator.
    return str(parts[-3]) if len(parts) >= 5 else ""


def conflicting(theirs: tuple[str, ...], ours: tuple[str, ...]) -> str:
    """A device of theirs, if this machine has another one in its place; ``""`` if there is none."""
    kinds = {_kind(name) for name in ours}
    return next((name for name in theirs if name not in ours and _kind(name) in kinds), "")


def _lasting(fingerprint: str) -> str:
    return _SET_BY_PROCESS.sub("", fingerprint)


def _kind(device: str) -> str:
    return device.partition(" ")[0].partition(":")[0]
