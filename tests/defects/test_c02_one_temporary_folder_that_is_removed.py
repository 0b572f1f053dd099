"""C2: a process without a usable cache folder has one temporary folder, which is gone when the process is: at its end,
or by the next process where it was killed. Folders in use and those of others stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from mixbackend.backends.common.process_folder import PREFIX, ProcessFolder, remove_abandoned

ASKS = """
import os, sys
from mixbackend.backends.common.private_folder import private_cache_folder
from mixbackend.storage.folder import private_folder
folders = {private_folder(), private_folder(), *(private_cache_folder(name).parent for name in ("a", "b", "a"))}
(private_cache_folder("a") / "code.so").write_bytes(b"native")
assert all(os.stat(folder).st_mode & 0o777 == 0o700 for folder in folders), folders
print(len(folders), *folders, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@dataclass
class Process:
    """A fork that has made its folder, and waits until it is told to end."""

    pid: int
    folder: Path
    end: int

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def finish(self) -> None:
        os.write(self.end, b"\n")
        assert os.waitpid(self.pid, 0)[1] == 0


@contextmanager
def _process() -> Iterator[Process]:
    told, end = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            mine = ProcessFolder()
            folder = mine.path()
            assert mine.path() == folder
            (folder / "code.so").write_bytes(b"native")
            os.write(told[1], os.fsencode(folder))
            os.read(end[0], 1)
            mine.remove()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(told[1])
    try:
        yield Process(pid, Path(os.fsdecode(os.read(told[0], 4096))), end[1])
    finally:
        for descriptor in (told[0], *end):
            os.close(descriptor)


def test_there_is_one_and_it_is_gone_at_the_end(temporary: Path) -> None:
    no_folder = temporary.parent / "file"
    no_folder.write_text("")
    environment = {**os.environ, "XDG_CACHE_HOME": str(no_folder), "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        [sys.executable, "-c", ASKS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    count, folder = process.stdout.readline().split()
    assert (count, list(temporary.iterdir())) == ("1", [Path(folder)])
    process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert list(temporary.iterdir()) == []


def test_those_of_killed_processes_are_removed_by_the_next_and_those_in_use_stay(temporary: Path) -> None:
    with _process() as killed, _process() as used:
        killed.kill()
        assert killed.folder.exists()
        with _process() as later:
            assert not killed.folder.exists()
            assert sorted(temporary.iterdir()) == sorted([used.folder, later.folder])
            later.finish()
        assert list(temporary.iterdir()) == [used.folder]
        assert (used.folder / "code.so").read_bytes() == b"native"
        with _process() as last:
            used.kill()
            last.finish()
        assert list(temporary.iterdir()) == [], "a process looks at its end, too: its workers are killed before it"


def test_a_fork_keeps_what_it_uses(temporary: Path) -> None:
    mine, end = ProcessFolder(), os.pipe()
    folder = mine.path()
    pid = os.fork()
    if pid == 0:
        os.read(end[0], 1)
        mine.remove()
        os._exit(0 if mine.path() == folder and folder.exists() else 1)
    mine.remove()
    assert folder.exists(), "the fork still runs"
    os.write(end[1], b"\n")
    assert os.waitpid(pid, 0)[1] == 0
    remove_abandoned()
    assert list(temporary.iterdir()) == []
    for descriptor in end:
        os.close(descriptor)


def test_what_is_no_abandoned_folder_of_ours_is_left(temporary: Path) -> None:
    target = temporary.parent / "target"
    target.mkdir()
    (target / "in-use").write_text("")
    (temporary / f"{PREFIX}link").symlink_to(target)
    (temporary / f"{PREFIX}unlocked").mkdir()
    (temporary / f"{PREFIX}file").write_text("")
    (temporary / "mixbackend-other").mkdir()
    (temporary / "mixbackend-other" / "in-use").write_text("")
    lock_elsewhere = temporary / f"{PREFIX}lock"
    lock_elsewhere.mkdir()
    (lock_elsewhere / "in-use").symlink_to(target / "in-use")
    before = sorted(temporary.iterdir())
    remove_abandoned()
    assert sorted(temporary.iterdir()) == before and (target / "in-use").exists()
