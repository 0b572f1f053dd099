"""Files that appear whole or not at all."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from mixbackend.backends.common.whole_file import replacing


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, writers = tmp_path / "file", 8
    together, failures = threading.Barrier(writers), []

    def write(value: int) -> None:
        try:
            for _ in range(20):
                with replacing(path) as file:
                    together.wait()
                    file.write(bytes([value]) * 1000)
        except BaseException as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=write, args=(value,)) for value in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(path.read_bytes()) == 1000 and len(set(path.read_bytes())) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="half way"), replacing(path) as file:
        file.write(b"new")
        raise ValueError("half way")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_what_is_written_is_for_this_user_alone(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as file:
        file.write(b"new")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
