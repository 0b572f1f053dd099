"""Files that appear whole or not at all.

Place: below everything that keeps files which other threads and processes read: stores, locks, compiled code, timings.
Input: a path. Output: a file to write, which takes the path's place once it is closed.
Invariants: a reader sees the old content or the new, never a part; writers side by side, threads too, lose no more than
each other's content; a write that fails leaves the old content and nothing beside it; only this user can read the file.
Non-goals: content that survives a loss of power (nothing is synchronised with the disk).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PREFIX = ".writing-"
"""What the names of files that are being written start with."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` where the block ends well.

    Its ``name`` is where it lies until then, in the same folder, which must exist. Raises what the file system raises.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=PREFIX, delete=False) as file:
        try:
            yield file
            file.close()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
