"""C1: importing a small archive takes little memory, whatever its members say of their sizes: names are looked at
first, sizes are held against bounds by kind and by ratio, and bytes come in pieces."""

from __future__ import annotations

import hashlib
import io
import json
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from mixbackend.storage import ArtifactStore, Database, Label, ThisMachine, artifact_key
from mixbackend.storage.archive import Brought, read_archive, write_archive

HERE = ThisMachine({"fast": "fast 1"}, ("cpu of one make",))
HUGE = 100 << 20
PIECE = bytes(1 << 20)
KEY = "0" * 64


def _cache(folder: Path) -> tuple[Database, ArtifactStore]:
    folder.mkdir(mode=0o700)
    return Database(folder / "test.sqlite"), ArtifactStore(folder)


def _with_zeros(file: io.BytesIO, name: str, said: int, filling: bytes = PIECE) -> io.BytesIO:
    """An archive with one more member of ``HUGE`` bytes, packed a thousand to one."""
    digest = hashlib.sha256()
    changed = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as new:
        with new.open(name, "w", force_zip64=True) as member:
            for _ in range(HUGE // len(filling)):
                digest.update(filling)
                member.write(filling)
        for other in old.namelist():
            if other not in ("manifest.json", name):
                new.writestr(other, old.read(other))
        manifest = json.loads(old.read("manifest.json"))
        manifest["members"][name] = {"sha256": digest.hexdigest(), "size": said}
        new.writestr("manifest.json", json.dumps(manifest))
    assert len(changed.getvalue()) < HUGE / 100
    return changed


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "filling", "said", "why"),
    [
        (f"artifacts/{KEY}.artifact", PIECE, HUGE, "more than 100 times"),
        (f"artifacts/{KEY}.artifact", PIECE, 1 << 50, "of which there may be"),
        (f"artifacts/{KEY}.artifact", PIECE, -1, "of which there may be"),
        (f"artifacts/{KEY}.artifact", PIECE, 1 << 20, "does not have the bytes"),
        ("rows/decisions.json", b"[]," * 1000, HUGE, "more than 100 times"),
        ("rows/others.json", PIECE, HUGE, "nothing that a cache holds"),
        ("../artifacts/x", PIECE, HUGE, "nothing that a cache holds"),
    ],
)
def test_a_small_archive_takes_little_memory(name: str, filling: bytes, said: int, why: str, tmp_path: Path) -> None:
    database, store = _cache(tmp_path / "one")
    database.quarantine("region", "fast", "fast 1", "crashed")
    file = io.BytesIO()
    write_archive(file, database, store, HERE, {})
    archive = _with_zeros(file, name, said, filling)
    other, its_store = _cache(tmp_path / "two")
    tracemalloc.start()
    try:
        brought = read_archive(archive, other, its_store, HERE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30 << 20, "a piece at a time"
    assert [why in refusal.why for refusal in brought.refused if refusal.what == name] == [True]
    assert brought.taken.total() == 1, "the rest is taken"


def test_members_that_are_refused_by_name_or_for_their_code_are_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, store = _cache(tmp_path / "one")
    store.put(artifact_key("region", "fast", "fast 1", "live", ""), b"native code", Label("fast", "fast 1", ""))
    file = io.BytesIO()
    write_archive(file, database, store, HERE, {})
    opened: list[str] = []
    open_member = zipfile.ZipFile.open

    def noted(self: zipfile.ZipFile, name: str, *arguments: object, **options: object) -> object:
        opened.append(name)
        return open_member(self, name, *arguments, **options)  # type: ignore[arg-type]

    archive = _with_zeros(file, "other", HUGE)
    monkeypatch.setattr(zipfile.ZipFile, "open", noted)
    brought: Brought = read_archive(archive, *_cache(tmp_path / "two"), HERE, no_code_because="nobody vouches")
    assert {refusal.why for refusal in brought.refused} == {"is nothing that a cache holds", "nobody vouches"}
    assert not any(name == "other" or name.startswith("artifacts") for name in opened)


def test_all_members_together_are_bounded_too(tmp_path: Path) -> None:
    """Each of them is small enough, all of them are more than a hundred times their archive."""
    database, store = _cache(tmp_path / "one")
    file = io.BytesIO()
    write_archive(file, database, store, HERE, {})
    with zipfile.ZipFile(file) as old:
        manifest = json.loads(old.read("manifest.json"))
    count, size = 40, 4 << 20
    content = bytes(size)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for number in range(count):
            name = f"artifacts/{number:064x}.artifact"
            new.writestr(name, content)
            manifest["members"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": size}
        new.writestr("manifest.json", json.dumps(manifest))
    brought = read_archive(packed, *_cache(tmp_path / "two"), HERE)
    reasons = [refusal.why for refusal in brought.refused]
    assert len([why for why in reasons if "with others more than" in why]) > count / 2
