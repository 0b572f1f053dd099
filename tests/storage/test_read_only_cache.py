"""``MIXBACKEND_CACHE`` names the cache; one that a process can only read, as in an image, is read, and told once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_forks import status_of
from test_disk_troubles import KEY, NOBODY, ROOT

from mixbackend.backends.common import private_folder as folders
from mixbackend.storage import Database, Label, Storage, StorageEvent, artifact_key
from mixbackend.storage.database import FILE

OTHER = artifact_key("other", "fast", "fast 1", "live", "cpu")


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache that was filled while an image was built: of the administrator where tests run as root, unwritable."""
    with tempfile.TemporaryDirectory(prefix="mixbackend-test-") as above:
        Path(above).chmod(0o755)
        place = Path(above) / "cache"
        monkeypatch.setenv("MIXBACKEND_CACHE", str(place))
        built = Storage(None, None, 1.0, {})
        built.store.put(KEY, b"content", Label("fast"))
        built.database.set_rates("backend", "fast", {"rates": [1]})
        built.database.close()
        kernel = folders.private_cache_folder("codegen-cpp") / "kernel.so"
        kernel.write_bytes(b"kernel")
        assert built.folder == place and kernel.parent.parent == place
        for path in [*place.rglob("*"), place]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield place
        for path in [place, *place.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def as_somebody_else() -> int | None:
    return NOBODY if ROOT else None


def test_what_lies_in_it_is_used_and_what_is_new_lasts_as_long_as_the_process(image: Path) -> None:
    before = sorted(image.rglob("*"))

    def work() -> None:
        events: list[StorageEvent] = []
        storage = Storage(None, None, 1.0, {}, events.append)
        assert storage.database.rates("backend", "fast") == {"rates": [1]}
        assert storage.store.get(KEY) == b"content"
        assert [artifact.key for artifact in storage.store.artifacts()] == [KEY]
        assert storage.store.put(OTHER, b"more") and storage.store.get(OTHER) == b"more"
        storage.database.set_rates("backend", "fast", {"rates": [2]})
        assert Database.open(storage.folder).rates("backend", "fast") == {"rates": [2]}
        kernel = folders.private_cache_folder("codegen-cpp") / "kernel.so"
        assert kernel.read_bytes() == b"kernel" and not folders.distrust(kernel.parent, kernel)
        (event,) = events  # the database and the artifacts are in one folder
        assert event.kind == "temporary" and f"{image} is only read" in event.detail

    assert status_of(work, as_somebody_else()) == 0
    assert sorted(image.rglob("*")) == before


@pytest.mark.parametrize("bad", ["damaged", "writable"])
def test_what_cannot_be_trusted_in_it_is_told_and_made_again(bad: str, image: Path) -> None:
    (path,) = image.rglob("*.artifact")
    path.chmod(0o666 if bad == "writable" else 0o644)
    if bad == "damaged":
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        (image / FILE).chmod(0o644)
        (image / FILE).write_bytes(b"no database")

    def work() -> None:
        events: list[StorageEvent] = []
        storage = Storage(None, None, 1.0, {}, events.append)
        assert storage.store.get(KEY) is None
        assert storage.store.put(KEY, b"again") and storage.store.get(KEY) == b"again"
        assert storage.database.rates("backend", "fast") == (None if bad == "damaged" else {"rates": [1]})
        kinds = ["temporary", "corrupt", "unreadable"] if bad == "damaged" else ["temporary", "foreign"]
        assert {event.kind for event in events} == set(kinds)

    assert status_of(work, as_somebody_else()) == 0


def test_a_cache_that_others_can_write_is_not_read(image: Path) -> None:
    image.chmod(0o777)

    def work() -> None:
        events: list[StorageEvent] = []
        storage = Storage(None, None, 1.0, {}, events.append)
        assert storage.store.get(KEY) is None and storage.database.rates("backend", "fast") is None
        assert {event.kind for event in events} == {"temporary"} and "is only read" not in events[0].detail

    assert status_of(work, as_somebody_else()) == 0
    assert os.listdir(image)
