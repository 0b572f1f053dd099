"""A cache in one file: rows and artifacts in a zip, for another machine of the same kind or for later.

Place: above store and database; used by ``mixbackend cache export|import``.
Form: ``manifest.json`` (versions, devices, fingerprints, size and SHA-256 of every member), ``rows/TABLE.json`` (a list
of objects), ``artifacts/KEY.artifact`` (the files of the store).
Invariants: nothing is unpickled, nothing is unpacked to a path that the archive names, and nothing beyond bounds (see
``members``); every member is held against the manifest, every row
is checked field by field and every artifact against its key; what does not fit is refused by itself, with a reason, and
the rest is taken. Nothing that is here and as new is replaced; nothing of another device or another build is taken.
Artifacts hold native code, so that they are taken only where the caller vouches for every user that could write the
archive.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict

import mixbackend.storage.entry as entry
from mixbackend.contracts import CONTRACT_VERSION, StorageError
from mixbackend.storage.artifacts import ArtifactStore
from mixbackend.storage.database import Database
from mixbackend.storage.members import ARTIFACT, ROWS, Member, Unpacker
from mixbackend.storage.tables import TABLES, Row, Table
from mixbackend.storage.validity import ThisMachine, conflicting

_MANIFEST = "manifest.json"
_LONGEST_MANIFEST = 1 << 24
"""Bytes: of some hundred thousand members."""
_SPACE = re.compile(r"[ \t\n\r]*")
_REMEDY = "make one with `mixbackend cache export`"

Show = Callable[[int, int], None]
"""Takes how many members are done, and how many there are."""


class Manifest(BaseModel):
    """What an archive says of itself."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Literal["mixbackend cache"] = "mixbackend cache"
    version: Literal[1] = 1
    contract: str = CONTRACT_VERSION
    made_at: float
    versions: dict[str, str]
    devices: list[str]
    fingerprints: dict[str, str]
    members: dict[str, Member]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something of an archive that was not taken.

    Attributes:
        what: the member, and in it the row.
        why: in words.
    """

    what: str
    why: str


@dataclass
class Brought:
    """What came of an import.

    Attributes:
        taken: how many rows by table, and ``artifacts``.
        kept: how many were here already, as new or newer.
        refused: the others, one by one.
    """

    taken: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    refused: list[Refusal] = field(default_factory=list)

    def note(self, table: str, took: bool) -> None:
        """Count one that was taken or was here."""
        (self.taken if took else self.kept)[table] += 1

    def refuse(self, what: str, why: str) -> None:
        """Note one that was not taken."""
        self.refused.append(Refusal(what, why))


def write_archive(
    file: IO[bytes],
    database: Database,
    store: ArtifactStore,
    machine: ThisMachine,
    versions: Mapping[str, str],
    show: Show = lambda done, total: None,
    wanted: Collection[str] | None = None,
) -> Counter[str]:
    """Write all rows, and artifacts; how many by kind.

    Args:
        file: where to; needs no seeking.
        database, store: of the cache.
        machine: this machine.
        versions: of libraries, for people.
        show: told of progress.
        wanted: keys of artifacts, ``None`` for all.
    """
    written: Counter[str] = Counter()
    members: dict[str, Member] = {}
    keys = [artifact.key for artifact in store.artifacts()] if wanted is None else sorted(wanted)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:

        def add(name: str, content: bytes) -> None:
            archive.writestr(name, content)
            members[name] = Member(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
            show(len(members), len(TABLES) + len(keys))

        for table in TABLES.values():
            rows = database.rows(table.name)
            written[table.name] = len(rows)
            add(f"rows/{table.name}.json", json.dumps(rows).encode())
        for key in keys:
            found = store.read(key)
            if found is not None:
                written["artifacts"] += 1
                add(f"artifacts/{key}.artifact", entry.encode(key, found.content, found.label))
        manifest = Manifest(
            made_at=time.time(),
            versions=dict(versions),
            devices=list(machine.devices),
            fingerprints=dict(machine.fingerprints),
            members=members,
        )
        archive.writestr(_MANIFEST, manifest.model_dump_json())
    return written


def read_archive(
    file: IO[bytes],
    database: Database,
    store: ArtifactStore,
    machine: ThisMachine,
    *,
    no_code_because: str = "",
    show: Show = lambda done, total: None,
) -> Brought:
    """Take what fits from an archive.

    Args:
        file: the archive; must be able to seek.
        database, store: of the cache.
        machine: this machine, all of its backends named.
        no_code_because: why artifacts are refused, whatever they are; empty if they may be taken.
        show: told of progress.

    Raises:
        StorageError: the file is no archive of a cache.
    """
    taker = _Taker(database, store, machine, no_code_because)
    try:
        with zipfile.ZipFile(file) as archive:
            manifest = _manifest(archive)
            for name in sorted(set(archive.namelist()) - set(manifest.members) - {_MANIFEST}):
                taker.brought.refuse(name, "is not in the manifest")
            unpacker = Unpacker.of(archive)
            for done, (name, member) in enumerate(manifest.members.items(), 1):
                why = taker.take(name, member, manifest, unpacker)
                if why:
                    taker.brought.refuse(name, why)
                show(done, len(manifest.members))
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise StorageError(f"this is no archive of a cache: {error}", hint=_REMEDY) from error
    return taker.brought


def _manifest(archive: zipfile.ZipFile) -> Manifest:
    try:
        with archive.open(_MANIFEST) as file:
            text = file.read(_LONGEST_MANIFEST + 1)
        if len(text) > _LONGEST_MANIFEST:
            raise StorageError(f"the manifest of this archive has more than {_LONGEST_MANIFEST} bytes", hint=_REMEDY)
        manifest = Manifest.model_validate_json(text)
    except (KeyError, RuntimeError, zlib.error, ValueError) as error:  # damaged places are negative, too
        raise StorageError(f"this archive has no manifest of a cache: {error}", hint=_REMEDY) from error
    if manifest.contract != CONTRACT_VERSION:
        raise StorageError(
            f"this archive was made with contract {manifest.contract}, here is {CONTRACT_VERSION}",
            hint="make it anew with the version of mixbackend that is used here",
        )
    return manifest


@dataclass
class _Taker:
    """Takes the members of an archive into a cache."""

    database: Database
    store: ArtifactStore
    machine: ThisMachine
    no_code_because: str
    brought: Brought = field(default_factory=Brought)

    def take(self, name: str, member: Member, manifest: Manifest, unpacker: Unpacker) -> str:
        """Why a member was refused as a whole; ``""`` if it was not."""
        rows, artifact = ROWS.fullmatch(name), ARTIFACT.fullmatch(name)
        if artifact and self.no_code_because:
            return self.no_code_because
        with unpacker.unpacked(name, member) as content:
            if isinstance(content, str):
                return content
            if artifact:
                return self._take_artifact(artifact[1], content)
            assert rows, "nothing else is unpacked"
            self._take_rows(TABLES[rows[1]], name, content, manifest)
        return ""

    def _take_rows(self, table: Table, name: str, content: BinaryIO, manifest: Manifest) -> None:
        for place, row in enumerate(_rows(content.read())):
            why = table.problem_of(row) or _foreign(table, row, manifest, self.machine)
            if why:
                self.brought.refuse(f"{name}, row {place + 1}", why)
            else:
                self.brought.note(table.name, self.database.take(table.name, row))

    def _take_artifact(self, key: str, content: BinaryIO) -> str:
        found = entry.read(key, content)
        if isinstance(found, str):
            return found
        if found.label.device and found.label.device not in self.machine.devices:
            return f"was made on {found.label.device}, here is {', '.join(self.machine.devices)}"
        stale = self.machine.stale_label(found.label)
        if stale:
            return stale
        is_here = self.store.read(key) is not None
        if not is_here and not self.store.put(key, found.content, found.label):
            return "could not be written"
        self.brought.note("artifacts", not is_here)
        return ""


def _rows(content: bytes) -> Iterator[Any]:
    """Elements of a list, one at a time; from where it is none, ``None``, which is refused with its reason."""
    decoder = json.JSONDecoder()
    try:
        text = content.decode()
        place = _behind(text, 0)
        if text[place : place + 1] != "[":
            # Something else than a list is one row.
            yield json.loads(text)
            return
        place = _behind(text, place + 1)
        if text[place : place + 1] == "]":
            return
        while True:
            row, place = decoder.raw_decode(text, place)
            yield row
            place = _behind(text, place)
            if text[place : place + 1] != ",":
                break
            place = _behind(text, place + 1)
        if text[place:].rstrip() != "]":
            yield None
    except (ValueError, RecursionError):
        yield None


def _behind(text: str, place: int) -> int:
    """The next place where there is no space."""
    found = _SPACE.match(text, place)
    return place if found is None else found.end()


def _foreign(table: Table, row: Row, manifest: Manifest, machine: ThisMachine) -> str:
    """Why a row does not hold on this machine; ``""`` if it does."""
    elsewhere = machine.other_device(table.name, row)
    if not elsewhere and "device" not in table.names and table.name != "rates":
        elsewhere = conflicting(tuple(manifest.devices), machine.devices)
    if elsewhere:
        return f"was made on {elsewhere}, here is {', '.join(machine.devices)}"
    return machine.stale(table.name, row)
