"""Archives: what fits is taken, everything else is refused by itself, and nothing newer is lost."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiers import draws

from mixbackend.contracts import StorageError
from mixbackend.storage import ArtifactStore, Database, Label, ThisMachine, artifact_key
from mixbackend.storage.archive import Brought, read_archive, write_archive
from mixbackend.storage.tables import TABLES

DEVICE, OTHER = "cpu of one make", "cpu of another make"
PRINT = {"fast": "fast 1", "eager": "eager 1"}
HERE = ThisMachine(PRINT, (DEVICE,))
KEY = artifact_key("region", "fast", "fast 1", "live", DEVICE)


class Cache:
    """A folder with a database and a store."""

    def __init__(self, folder: Path, now: float = 1000.0) -> None:
        folder.mkdir(mode=0o700)
        self.now = now
        self.database = Database(folder / "test.sqlite", clock=lambda: self.now)
        self.store = ArtifactStore(folder)

    def fill(self, device: str = DEVICE, fingerprint: str = "fast 1") -> Cache:
        self.database.set_plan("graph", {"plan": 1}, device=device, fingerprints={"fast": fingerprint})
        self.database.set_rates("device", f"{device} | torch 1 | threads 2", {"device": device})
        self.database.set_rates("backend", f"fast | {fingerprint} | {device} | torch 1 | threads 2", {"rates": []})
        self.database.set_decision("graph", {"choice": 1}, device=device, fingerprints={"fast": fingerprint})
        self.database.quarantine("region 2", "fast", fingerprint, "crashed")
        self.database.confirm("region", "fast", fingerprint)
        self.store.put(KEY, b"native code", Label("fast", fingerprint, device))
        return self

    def archive(self, machine: ThisMachine = HERE) -> io.BytesIO:
        file = io.BytesIO()
        write_archive(file, self.database, self.store, machine, {"torch": "1"})
        return file

    def bring(self, file: io.BytesIO, machine: ThisMachine = HERE, **how: Any) -> Brought:
        return read_archive(file, self.database, self.store, machine, **how)


@pytest.fixture
def one(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "one").fill()


@pytest.fixture
def two(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "two")


def change(file: io.BytesIO, edit: Callable[[dict[str, bytes]], None], honest: bool = True) -> io.BytesIO:
    """The archive with other members; an honest one has digests that fit."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    edit(members)
    if honest:
        manifest = json.loads(members["manifest.json"])
        manifest["members"] = {
            name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            for name, content in members.items()
            if name != "manifest.json"
        }
        members["manifest.json"] = json.dumps(manifest).encode()
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return changed


def contents(cache: Cache) -> dict[str, Any]:
    return {name: cache.database.rows(table.name) for name, table in TABLES.items()}


def test_everything_arrives(one: Cache, two: Cache) -> None:
    brought = two.bring(one.archive())
    assert contents(two) == contents(one)
    assert two.store.get(KEY) == b"native code"
    assert [artifact.label for artifact in two.store.artifacts()] == [Label("fast", "fast 1", DEVICE)]
    assert brought.taken == {
        "rates": 2,
        "decisions": 1,
        "plans": 1,
        "quarantine": 1,
        "verified": 1,
        "artifacts": 1,
    }
    assert not brought.refused and not brought.kept


def test_again_changes_nothing(one: Cache, two: Cache) -> None:
    two.bring(one.archive())
    brought = two.bring(one.archive())
    assert not brought.taken and sum(brought.kept.values()) == 7


def test_what_is_newer_here_stays_and_what_is_older_is_replaced(one: Cache, two: Cache) -> None:
    two.now = 500.0
    two.database.set_plan("graph", {"plan": 2}, device=DEVICE, fingerprints=PRINT)
    two.now = 2000.0
    two.database.set_decision("graph", {"choice": 2}, device=DEVICE, fingerprints=PRINT)
    brought = two.bring(one.archive())
    assert two.database.decision("graph") == {"choice": 2}
    assert two.database.plan("graph") == {"plan": 1}
    assert brought.kept["decisions"] == 1 and brought.taken["plans"] == 1


def test_a_clock_that_is_ahead_makes_nothing_newer_than_now(one: Cache, two: Cache) -> None:
    one.now = 1e12
    one.database.set_decision("graph", {"choice": 9}, device=DEVICE, fingerprints=PRINT)
    two.bring(one.archive())
    two.now = 1001.0
    assert two.database.rows("decisions")[0]["decided_at"] == 1000.0


def test_nothing_of_another_device_is_taken(tmp_path: Path, two: Cache) -> None:
    there = Cache(tmp_path / "there").fill(device=OTHER)
    brought = two.bring(there.archive(ThisMachine(PRINT, (OTHER,))))
    assert not brought.taken
    assert len(brought.refused) == 7
    assert {refusal.why for refusal in brought.refused} == {f"was made on {OTHER}, here is {DEVICE}"}
    assert not any(contents(two).values()) and two.store.usage() == (0, 0)


def test_a_machine_with_a_further_device_is_no_other_machine(one: Cache, two: Cache) -> None:
    brought = two.bring(one.archive(ThisMachine(PRINT, (DEVICE, "cuda:0 big"))))
    assert not brought.refused
    brought = two.bring(one.archive(), ThisMachine(PRINT, (DEVICE, "cuda:0 big")))
    assert not brought.refused


def test_nothing_of_another_build_is_taken(tmp_path: Path, two: Cache) -> None:
    there = Cache(tmp_path / "there").fill(fingerprint="fast 2")
    brought = two.bring(there.archive())
    assert brought.taken == {"rates": 1}, "the device's own rates know no backend"
    assert {refusal.why for refusal in brought.refused} == {"fast is another one now"}
    brought = two.bring(there.archive(), ThisMachine({"eager": "eager 1"}, (DEVICE,)))
    assert {refusal.why for refusal in brought.refused} == {"backend fast is not here"}


def test_native_code_is_left_where_nobody_vouches_for_it(one: Cache, two: Cache) -> None:
    brought = two.bring(one.archive(), no_code_because="the archive belongs to user 7")
    (refusal,) = brought.refused
    assert refusal.what == f"artifacts/{KEY}.artifact" and refusal.why == "the archive belongs to user 7"
    assert two.store.usage() == (0, 0) and brought.taken["decisions"] == 1


def test_a_changed_member_is_refused_and_the_rest_taken(one: Cache, two: Cache) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members["rows/decisions.json"] = members["rows/decisions.json"].replace(b"choice", b"chance")
        del members["rows/rates.json"]
        members["rows/../../evil.json"] = b"[]"

    brought = two.bring(change(one.archive(), edit, honest=False))
    refused = {refusal.what: refusal.why for refusal in brought.refused}
    assert refused == {
        "rows/../../evil.json": "is not in the manifest",
        "rows/decisions.json": "does not have the bytes that the manifest says",
        "rows/rates.json": "is missing",
    }
    assert brought.taken["plans"] == 1 and brought.taken["artifacts"] == 1


def test_what_no_cache_holds_is_refused_even_if_the_manifest_names_it(one: Cache, two: Cache, tmp_path: Path) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members["artifacts/../../evil.artifact"] = b"x"
        members["rows/cooking.json"] = b"[]"
        members["artifacts/" + "0" * 64 + ".artifact"] = b"short"
        members[f"artifacts/{artifact_key('other', 'fast', 'fast 1', 'live', DEVICE)}.artifact"] = members[
            f"artifacts/{KEY}.artifact"
        ]

    brought = two.bring(change(one.archive(), edit))
    reasons = sorted(refusal.why for refusal in brought.refused)
    assert reasons == [
        "does not have the bytes that were written",
        "is cut short (5 bytes)",
        "is nothing that a cache holds",
        "is nothing that a cache holds",
    ]
    assert two.store.usage()[0] == 1 and not list(tmp_path.rglob("evil*"))


GOOD = {"subject": "s", "device": DEVICE, "fingerprints": "{}", "value": "{}", "decided_at": 1.0}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (7, "is a int, not an object"),
        ({}, "has the fields []"),
        ({**GOOD, "more": 1}, "has the fields"),
        ({**GOOD, "subject": None}, "subject is a NoneType"),
        ({**GOOD, "decided_at": -1.0}, "decided_at is -1.0"),
        ({**GOOD, "decided_at": float("nan")}, "decided_at is nan"),
        ({**GOOD, "decided_at": True}, "decided_at is a bool"),
        ({**GOOD, "value": "[1]"}, "value is no JSON object"),
        ({**GOOD, "value": "[" * 100_000}, "value is no JSON object"),
        ({**GOOD, "device": 1, "value": "x"}, "device is a int; value is no JSON object"),
    ],
)
def test_rows_are_checked_field_by_field(row: object, why: str, one: Cache, two: Cache) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members["rows/decisions.json"] = json.dumps([GOOD, row]).encode()

    brought = two.bring(change(one.archive(), edit))
    (refusal,) = brought.refused
    assert refusal.what == "rows/decisions.json, row 2" and refusal.why.startswith(why)
    assert brought.taken["decisions"] == 1


@pytest.mark.parametrize("text", [b"{", b"7", b"[" * 100_000])
def test_rows_that_are_no_list(text: bytes, one: Cache, two: Cache) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members["rows/decisions.json"] = text

    (refusal,) = two.bring(change(one.archive(), edit)).refused
    assert refusal.what == "rows/decisions.json, row 1" and "not an object" in refusal.why


def test_a_member_that_unpacks_to_more_than_it_says(one: Cache, two: Cache) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members["rows/decisions.json"] = b"[" + b" " * 50_000_000 + b"]"

    (refusal,) = two.bring(change(one.archive(), edit, honest=False)).refused
    assert refusal.why == "does not have the bytes that the manifest says"


def no_manifest(members: dict[str, bytes]) -> None:
    del members["manifest.json"]


def other_kind(members: dict[str, bytes]) -> None:
    members["manifest.json"] = members["manifest.json"].replace(b"mixbackend cache", b"a recipe")


def newer_version(members: dict[str, bytes]) -> None:
    members["manifest.json"] = members["manifest.json"].replace(b'"version":1', b'"version":2')


def other_contract(members: dict[str, bytes]) -> None:
    manifest = json.loads(members["manifest.json"])
    members["manifest.json"] = json.dumps({**manifest, "contract": "99.0"}).encode()


@pytest.mark.parametrize("edit", [no_manifest, other_kind, newer_version, other_contract])
def test_another_manifest_ends_the_import(edit: Callable[[dict[str, bytes]], None], one: Cache, two: Cache) -> None:
    with pytest.raises(StorageError, match="archive"):
        two.bring(change(one.archive(), edit, honest=False))
    assert not any(contents(two).values())


@pytest.mark.parametrize("content", [b"", b"this is no zip" * 100])
def test_a_file_that_is_no_archive(content: bytes, two: Cache) -> None:
    with pytest.raises(StorageError, match="no archive"):
        two.bring(io.BytesIO(content))


def test_damage_anywhere_costs_a_member_or_the_whole_and_never_lets_anything_wrong_in(
    one: Cache, tmp_path: Path
) -> None:
    data = one.archive().getvalue()
    good = contents(one)
    for number, position in enumerate(range(0, len(data), max(1, len(data) // draws(40, 120)))):
        damaged = bytearray(data)
        damaged[position] ^= 0xFF
        cache = Cache(tmp_path / f"damaged {number}")
        try:
            cache.bring(io.BytesIO(bytes(damaged)))
        except StorageError:
            continue
        for name, rows in contents(cache).items():
            assert all(row in good[name] for row in rows)
        assert cache.store.get(KEY) in (None, b"native code")
