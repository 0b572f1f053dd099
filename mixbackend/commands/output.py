"""What all commands share about printing.

Place: below every command.
Invariants: with ``--json`` standard output holds one JSON value and nothing else; colour, the terminal's width and
lines that change are used only on a terminal.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rich.console import Console

from mixbackend.host.slow_notice import AFTER_S

PLAIN_WIDTH = 140
EVERY_S = 10.0
"""So often a line says what goes on, where the user could not see one that changes."""


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


@contextmanager
def progress_shown(text: str, after_s: float = AFTER_S, every_s: float = EVERY_S) -> Iterator[Callable[[str], None]]:
    """Gives a function that takes what goes on now; a line that changes on a terminal, elsewhere one now and then.

    Args:
        text: what goes on first.
        after_s, every_s: elsewhere, the first line comes after so long, and others after so long again.
    """
    screen = Console(stderr=True)
    if screen.is_terminal:
        with screen.status(text) as status:
            yield status.update
        return
    with lines_shown(text, after_s, every_s) as show:
        yield show


@contextmanager
def lines_shown(text: str, after_s: float = AFTER_S, every_s: float = EVERY_S) -> Iterator[Callable[[str], None]]:
    """As ``progress_shown``, but silent on a terminal: for work that shows a bar of its own there."""
    if Console(stderr=True).is_terminal:
        yield lambda now: None
        return
    told, over = [text], threading.Event()
    teller = threading.Thread(target=_tell, args=(told, over, after_s, every_s), daemon=True)
    teller.start()
    try:
        yield lambda now: told.__setitem__(0, now)
    finally:
        over.set()
        teller.join()


def _tell(told: list[str], over: threading.Event, after_s: float, every_s: float) -> None:
    pause = after_s
    while not over.wait(pause):
        print(told[0], file=sys.stderr, flush=True)
        pause = every_s
