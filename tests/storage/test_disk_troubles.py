"""Full disks, folders that cannot be written, other users and links, by the system itself: told, and work goes on."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_forks import status_of

from mixbackend.contracts import StorageError
from mixbackend.storage import ArtifactStore, Database, Label, StorageEvent, artifact_key, private_folder

NOBODY = 65534
ROOT = os.getuid() == 0
KEY = artifact_key("region", "fast", "fast 1", "live", "cpu")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can get to; it belongs to that user where tests run as root, who may do anything."""
    above = Path(tempfile.mkdtemp(prefix="mixbackend-test-"))
    above.chmod(0o755)
    folder = above / "cache"
    folder.mkdir(mode=0o700)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(above)


def give_away(folder: Path) -> int | None:
    """Let the other user own everything in a folder; who that is."""
    for path in [folder, *folder.rglob("*")]:
        if ROOT:
            os.chown(path, NOBODY, NOBODY)
    return NOBODY if ROOT else None


def limit_files(size: int) -> None:
    """From now on no file of this process grows over a size: writing fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_database_that_cannot_grow_keeps_what_it_has(folder: Path) -> None:
    path = folder / "test.sqlite"
    first = Database(path)
    for number in range(200):
        first.confirm(f"before {number}", "fast", "1")
    first.close()

    def write_on_a_full_disk() -> None:
        events: list[StorageEvent] = []
        limit_files(path.stat().st_size + 20_000)
        database = Database(path, events.append)
        for number in range(400):
            database.set_decision(f"during {number}", {"x": "y" * 2000})
        assert events and {event.kind for event in events} <= {"unwritable", "unreadable"}, events[:3]
        database.close()
        later = Database(path, events.append)
        assert later.confirmations("before 7", "fast", "1"), events[-3:]

    assert status_of(write_on_a_full_disk) == 0
    events: list[StorageEvent] = []
    database = Database(path, events.append)
    assert all(database.confirmations(f"before {number}", "fast", "1") for number in range(200))
    database.confirm("after", "fast", "1")
    assert database.confirmations("after", "fast", "1") and not events
    assert not list(folder.glob("*.set-aside-*"))
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_database_that_cannot_even_be_begun(folder: Path) -> None:
    path = folder / "test.sqlite"

    def begin_on_a_full_disk() -> None:
        events: list[StorageEvent] = []
        limit_files(0)
        database = Database(path, events.append)
        database.confirm("region", "fast", "1")
        assert not database.confirmations("region", "fast", "1")
        assert events

    assert status_of(begin_on_a_full_disk) == 0
    events: list[StorageEvent] = []
    database = Database(path, events.append)
    database.confirm("region", "fast", "1")
    assert database.confirmations("region", "fast", "1") and not events


def test_an_artifact_that_does_not_fit_leaves_nothing(folder: Path) -> None:
    def write_on_a_full_disk() -> None:
        events: list[StorageEvent] = []
        limit_files(10_000)
        store = ArtifactStore(folder, report=events.append)
        assert store.put(KEY, b"x" * 5_000)
        assert not store.put(KEY, b"y" * 50_000)
        assert [event.kind for event in events] == ["unwritable"]
        assert store.get(KEY) == b"x" * 5_000

    assert status_of(write_on_a_full_disk) == 0
    assert not list(folder.rglob(".writing-*"))


def test_a_folder_that_cannot_be_written_is_read(open_folder: Path) -> None:
    ArtifactStore(open_folder).put(KEY, b"content", Label("fast"))
    database = Database(open_folder / "test.sqlite")
    database.confirm("region", "fast", "1")
    database.close()
    user = give_away(open_folder)
    for path in [*open_folder.rglob("*"), open_folder]:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)

    def work() -> None:
        events: list[StorageEvent] = []
        store = ArtifactStore(open_folder, report=events.append)
        assert store.get(KEY) == b"content"
        assert not store.put(artifact_key("other", "fast", "1", "live", "cpu"), b"more")
        store.discard(KEY, "was refused by its backend")
        assert store.clear() == 0
        database = Database(open_folder / "test.sqlite", events.append)
        database.confirm("other", "fast", "1")
        assert not database.confirmations("other", "fast", "1")
        assert {"unwritable", "corrupt"} <= {event.kind for event in events}
        with pytest.raises(StorageError, match="cannot be written"):
            private_folder(open_folder)

    assert status_of(work, user) == 0


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_folder_of_somebody_else_is_refused(mode: int, open_folder: Path) -> None:
    """Where tests do not run as root, the root's own folder takes its place."""
    theirs = open_folder if ROOT else Path("/usr")
    if ROOT:
        theirs.chmod(mode)

    def work() -> None:
        for opened in (ArtifactStore.open, Database.open):
            with pytest.raises(StorageError, match="belongs to user 0"):
                opened(theirs)

    assert status_of(work, NOBODY if ROOT else None) == 0


def test_a_link_to_a_folder_counts_as_the_folder(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    ArtifactStore.open(link).put(KEY, b"content")
    assert ArtifactStore.open(folder).get(KEY) == b"content"
    folder.chmod(0o777)
    with pytest.raises(StorageError, match="written by others"):
        ArtifactStore.open(link)
    link.unlink()
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="cannot be used"):
        ArtifactStore.open(link)


def test_an_entry_that_is_a_link_to_ones_own_file_is_still_foreign(folder: Path, events: list[StorageEvent]) -> None:
    store = ArtifactStore(folder, report=events.append)
    store.put(KEY, b"content")
    (path,) = folder.rglob("*.artifact")
    kept = folder / "kept"
    path.rename(kept)
    path.symlink_to(kept)
    assert store.get(KEY) is None and kept.exists()
    assert store.put(KEY, b"new") and not path.is_symlink()
    assert kept.read_bytes() != path.read_bytes() and store.get(KEY) == b"new"
    assert [event.kind for event in events] == ["foreign"]


def test_a_disk_that_fails_for_a_moment_is_no_damaged_database(
    folder: Path, events: list[StorageEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailingDisk(sqlite3.Connection):
        def execute(self, *_: object) -> sqlite3.Cursor:
            raise sqlite3.OperationalError("disk I/O error")

    path = folder / "test.sqlite"
    first = Database(path)
    first.confirm("before", "fast", "1")
    first.close()
    with monkeypatch.context() as moment:
        moment.setattr(sqlite3, "connect", lambda *_, **__: FailingDisk(":memory:"))
        Database(path, events.append).confirm("during", "fast", "1")
    assert [event.kind for event in events] == ["unwritable"]
    assert Database(path, events.append).confirmations("before", "fast", "1")
    assert not list(folder.glob("*.set-aside-*"))
