"""What ``module:name`` on a command line names: modules of the folder that the command runs in, too.

Place: below the commands that import what users name. A script of an environment does not look into the current folder
by itself. Processes that are started meanwhile look there as well: they are given ``sys.path``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def modules_of_this_folder() -> Iterator[None]:
    """Import from the current folder, too: what is installed, Python's own modules say, is found before."""
    folder = str(Path.cwd())
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
