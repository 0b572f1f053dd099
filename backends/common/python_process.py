"""How processes of our own are started: as ``python -m MODULE``, but for the current folder.

Place: beside modules that start a Python process. Input: a module. Output: the command.
``python -m`` finds what lies in the current folder first: a ``random.py`` there would be imported in place of Python's.
Python's own ``-P`` forbids that from 3.11 on; this does so in every version.
"""

from __future__ import annotations

import sys

_RUN = """
import sys
sys.path[:] = filter(None, sys.path)
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module."""
    return [sys.executable, "-c", _RUN, module, *arguments]
