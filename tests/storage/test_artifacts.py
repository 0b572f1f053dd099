"""The artifact store: whole entries or none, whatever happens to the files and the processes."""

from __future__ import annotations

import os
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws
from warm_processes import WarmProcesses

from mixbackend.contracts import StorageError
from mixbackend.storage import ArtifactStore, StorageEvent, artifact_key, entry
from mixbackend.storage.background_io import finish

KEY = artifact_key("region", "onnxruntime", "ort 1.31", "live", "cpu")


def entry_file(folder: Path, key: str = KEY) -> Path:
    return folder / "artifacts" / key[:2] / f"{key}.artifact"


@pytest.fixture
def store(folder: Path, events: list[StorageEvent]) -> ArtifactStore:
    return ArtifactStore(folder, report=events.append)


def test_what_is_put_is_got_by_another_store(store: ArtifactStore, folder: Path, events: list[StorageEvent]) -> None:
    assert store.get(KEY) is None
    assert store.put(KEY, b"\0native code\xff")
    assert ArtifactStore(folder, report=events.append).get(KEY) == b"\0native code\xff"
    assert store.usage()[0] == 1
    assert not events


def test_keys_tell_every_part_apart() -> None:
    parts = ("region", "ab", "c", "live", "cpu")
    others = [
        ("regionX", "ab", "c", "live", "cpu"),
        ("region", "a", "bc", "live", "cpu"),
        ("region", "ab", "c", "baked", "cpu"),
        ("region", "ab", "c", "live", "cpu of another make"),
    ]
    assert len({artifact_key(*item) for item in [parts, *others]}) == 5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"X" + data[1:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:12] + bytes([data[12] ^ 128]) + data[13:],
        lambda data: entry.encode("another key", b"content"),
    ],
)
def test_damage_is_found_removed_reported_and_rebuilt(
    damage: object, store: ArtifactStore, folder: Path, events: list[StorageEvent]
) -> None:
    store.put(KEY, b"content")
    path = entry_file(folder)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    path.chmod(0o600)
    assert store.get(KEY) is None
    assert [event.kind for event in events] == ["corrupt"]
    assert not path.exists()
    assert store.put(KEY, b"content")
    assert store.get(KEY) == b"content"


def test_content_is_read_without_a_copy(store: ArtifactStore) -> None:
    """Engines and weights are hundreds of megabytes."""
    store.put(KEY, bytes(1 << 22))
    tracemalloc.start()
    try:
        store.get(KEY)
        tracemalloc.reset_peak()
        store.get(KEY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * (1 << 22)


@settings(derandomize=True, deadline=None, max_examples=draws(70, 200))
@given(st.binary(max_size=64), st.integers(0, 200), st.integers(1, 255))
def test_any_changed_byte_is_noticed(content: bytes, position: int, change: int) -> None:
    data = bytearray(entry.encode(KEY, content))
    data[position % len(data)] ^= change
    assert isinstance(entry.decode(KEY, bytes(data)), str)


def test_entries_that_others_can_write_are_foreign(
    store: ArtifactStore, folder: Path, events: list[StorageEvent]
) -> None:
    store.put(KEY, b"content")
    entry_file(folder).chmod(0o666)
    assert store.get(KEY) is None
    assert [event.kind for event in events] == ["foreign"]
    assert not entry_file(folder).exists()


def test_entries_of_another_user_are_foreign(
    store: ArtifactStore, events: list[StorageEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(KEY, b"content")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert store.get(KEY) is None
    assert "belongs to user" in events[0].detail


def test_links_are_foreign_and_their_target_is_left_alone(
    store: ArtifactStore, folder: Path, events: list[StorageEvent], tmp_path: Path
) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(entry.encode(KEY, b"content"))
    entry_file(folder).parent.mkdir(parents=True)
    entry_file(folder).symlink_to(target)
    assert store.get(KEY) is None
    assert [event.kind for event in events] == ["foreign"]
    assert target.exists()


def test_pipes_and_folders_in_place_of_entries(store: ArtifactStore, folder: Path, events: list[StorageEvent]) -> None:
    entry_file(folder).parent.mkdir(parents=True)
    os.mkfifo(entry_file(folder))
    assert store.get(KEY) is None
    entry_file(folder).mkdir()
    assert store.get(KEY) is None
    assert not store.put(KEY, b"content")
    assert [event.kind for event in events] == ["foreign", "unreadable", "unwritable"]


def test_the_least_recently_used_go_first(folder: Path, events: list[StorageEvent]) -> None:
    now = [1000.0]
    store = ArtifactStore(folder, max_bytes=10_000, report=events.append, clock=lambda: now[0])
    keys = [artifact_key(f"region {index}", "eager", "", "live", "cpu") for index in range(12)]
    for key in keys[:9]:
        now[0] += 1
        store.put(key, b"x" * 1000)
    now[0] += 1
    assert store.get(keys[0]) is not None
    for key in keys[9:]:
        now[0] += 1
        store.put(key, b"x" * 1000)
    assert store.get(keys[0]) is not None
    assert store.get(keys[1]) is None
    assert store.get(keys[-1]) is not None
    assert store.usage()[1] <= 10_000


def test_what_is_larger_than_the_store_is_not_stored(folder: Path, events: list[StorageEvent]) -> None:
    store = ArtifactStore(folder, max_bytes=100, report=events.append)
    assert not store.put(KEY, b"x" * 200)
    assert [event.kind for event in events] == ["unwritable"]


def test_clear_and_discard(store: ArtifactStore, events: list[StorageEvent]) -> None:
    store.put(KEY, b"content")
    store.discard(KEY, "was refused by its backend")
    assert store.get(KEY) is None
    assert "refused by its backend" in events[0].detail
    store.put(KEY, b"content")
    assert store.clear() == 1
    assert store.usage() == (0, 0)


def test_a_full_or_vanished_folder_is_reported_not_raised(
    store: ArtifactStore, events: list[StorageEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    assert not store.put(KEY, b"content")
    assert "No space" in events[0].detail
    assert not list(store.folder.rglob(".writing-*"))


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_folders_that_others_can_write_are_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(StorageError, match="written by others"):
        ArtifactStore.open(folder)


def test_folders_of_other_users_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(StorageError, match="belongs to user"):
        ArtifactStore.open(folder)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used"):
        ArtifactStore.open(tmp_path / "file")


def test_new_folders_are_private(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        store = ArtifactStore.open(tmp_path / "new")
        store.put(KEY, b"content")
    finally:
        os.umask(previous)
    modes = [path.stat().st_mode & 0o777 for path in [tmp_path / "new", *(tmp_path / "new").rglob("*")]]
    assert modes == [0o700, 0o700, 0o700, 0o600]


def test_the_usual_folder_falls_back_to_a_temporary_one(
    folder: Path, events: list[StorageEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o777)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: str(folder))
    store = ArtifactStore.open(report=events.append)
    assert folder not in store.folder.parents
    assert [event.kind for event in events] == ["temporary"]


# --- many threads and processes --------------------------------------------------------------------------------------

_WRITER = """
import sys, hashlib
from pathlib import Path
from mixbackend.storage import ArtifactStore, artifact_key
events = []
store = ArtifactStore(Path(sys.argv[1]), max_bytes=float(sys.argv[3]), report=events.append)
print("ready", flush=True)
for round in range(int(sys.argv[2])):
    key = artifact_key(f"region {round % 7}", "eager", "", "live", "cpu")
    content = hashlib.sha256(key.encode()).digest() * 2000
    store.put(key, content)
    found = store.get(key)
    assert found is None or found == content
assert not events, events
print("done", flush=True)
"""


def test_many_processes_write_the_same_keys(warm: WarmProcesses, folder: Path) -> None:
    # A limit of four entries makes them evict one another's entries as well.
    processes = [warm.start(_WRITER, str(folder), str(draws(20, 60)), str(4 * 64_048)) for _ in range(3)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert all(output.endswith("done\n") for output in outputs)


def test_a_killed_writer_leaves_no_broken_entry(warm: WarmProcesses, folder: Path, events: list[StorageEvent]) -> None:
    process = warm.start(_WRITER, str(folder), "1000000", "1e9")
    process.stdout.readline()
    time.sleep(0.4)
    process.kill()
    process.communicate()
    store = ArtifactStore(folder, report=events.append)
    found = [store.get(artifact_key(f"region {index}", "eager", "", "live", "cpu")) for index in range(7)]
    assert any(content is not None for content in found)
    assert not events


def test_remains_of_killed_writers_are_swept_later(folder: Path, events: list[StorageEvent]) -> None:
    now = [time.time()]
    store = ArtifactStore(folder, max_bytes=1000, report=events.append, clock=lambda: now[0])
    store.put(KEY, b"x" * 500)
    remains = entry_file(folder).with_name(".writing-abc")
    remains.write_bytes(b"half")
    now[0] += 7200
    store.put(artifact_key("other", "eager", "", "live", "cpu"), b"x" * 800)
    assert not remains.exists()


def test_threads_share_a_store(store: ArtifactStore, events: list[StorageEvent]) -> None:
    def work(index: int) -> None:
        for round in range(30):
            key = artifact_key(f"region {(index + round) % 5}", "eager", "", "live", "cpu")
            store.put(key, key.encode() * 50)
            assert store.get(key) == key.encode() * 50

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.usage()[0] == 5
    assert not events


# --- remote level ----------------------------------------------------------------------------------------------------


def test_the_remote_level_serves_other_machines(tmp_path: Path, events: list[StorageEvent]) -> None:
    remote = f"file://{tmp_path}/fleet"
    ArtifactStore.open(tmp_path / "one", remote=remote, report=events.append).put(KEY, b"content")
    finish(10)
    second = ArtifactStore.open(tmp_path / "two", remote=remote, report=events.append)
    assert second.get(KEY) == b"content"
    assert entry_file(tmp_path / "two").exists()
    assert not events


def test_remote_entries_are_verified(tmp_path: Path, events: list[StorageEvent]) -> None:
    remote = f"file://{tmp_path}/fleet"
    ArtifactStore.open(tmp_path / "one", remote=remote, report=events.append).put(KEY, b"content")
    finish(10)
    (path,) = (tmp_path / "fleet").rglob("*.artifact")
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    second = ArtifactStore.open(tmp_path / "two", remote=remote, report=events.append)
    assert second.get(KEY) is None
    assert [event.kind for event in events] == ["corrupt"]
    second.put(KEY, b"content")
    finish(10)
    third = ArtifactStore.open(tmp_path / "three", remote=remote, report=events.append)
    assert third.get(KEY) == b"content"


def test_a_failing_remote_is_left_alone_after_a_while(
    tmp_path: Path, events: list[StorageEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    store = ArtifactStore.open(tmp_path / "one", remote="memory://fleet", report=events.append)
    for index in range(10):
        assert store.get(artifact_key(f"{index}", "eager", "", "live", "cpu")) is None
    assert store.put(KEY, b"content")
    assert [event.kind for event in events] == ["remote"] * 3
    assert "not asked again" in events[-1].detail


def test_an_unknown_kind_of_remote_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="carrierpigeon"):
        ArtifactStore.open(tmp_path / "one", remote="carrierpigeon://coop")
