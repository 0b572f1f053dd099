"""What all commands share about printing.

Place: below every command.
Invariants: with ``--json`` standard output holds one JSON value and nothing else; colour and the terminal's width are
used only on a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rich.console import Console

PLAIN_WIDTH = 140


def print_json(value: Any) -> None:
    """One JSON value on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def console() -> Console:
    """A console on standard output; of a fixed width and without colour unless that is a terminal."""
    if sys.stdout.isatty():
        return Console(file=sys.stdout, highlight=False)
    return Console(file=sys.stdout, width=PLAIN_WIDTH, color_system=None, force_terminal=False, highlight=False)


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """Send to standard error what models and libraries print, so that standard output holds only the answer."""
    with redirect_stdout(sys.stderr):
        yield
