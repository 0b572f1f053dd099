"""What long benchmarks share: a bar with the time left, a limit of time, leaving in order when asked to end.

Place: below ``bench_peers``, ``bench_tuning`` and ``bench_costs``. Progress goes to standard error: a bar on a
terminal, else a line now and then.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mixbackend.benchmarks.peers.turns import Show


@contextmanager
def left_in_order() -> Iterator[None]:
    """Let a request to end this process end the processes it started and take their files away first."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], Show]]:
    """Gives a function that takes the expected seconds of all work and begins the bar."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda expected_s: _in_lines(expected_s, console)
        return
    with Progress(*columns, console=console, transient=True, speed_estimate_period=1800.0) as progress:

        def begin(expected_s: float) -> Show:
            task = progress.add_task(title, total=expected_s)
            return lambda text, behind_s: progress.update(task, description=text, advance=behind_s)

        yield begin


_LINE_EVERY_S = 30.0


def _in_lines(expected_s: float, console: Console, clock: Callable[[], float] = time.monotonic) -> Show:
    """A line for what is being done, not more often than every half minute."""
    begun = clock()
    said_at, behind = -math.inf, 0.0

    def show(text: str, behind_s: float) -> None:
        nonlocal said_at, behind
        behind += behind_s
        if clock() - said_at >= _LINE_EVERY_S:
            said_at = clock()
            share = f"{min(1.0, behind / expected_s):.0%}, " if expected_s else ""
            console.print(f"{share}{(clock() - begun) / 60:.1f} min: {text}", soft_wrap=True)

    return show


def time_limit(minutes: float, clock: Callable[[], float] = time.monotonic) -> Callable[[], bool]:
    """Whether so many minutes are over since now; 0 is no limit."""
    end = clock() + (minutes * 60.0 if minutes > 0 else math.inf)
    return lambda: clock() > end


def names_in(text: str) -> tuple[str, ...]:
    """Names with commas between, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def chosen(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """Names with commas between, all of them known; all that are known if there are none.

    Raises:
        ValueError: a name is not known.
    """
    parts = names_in(text) or tuple(known)
    unknown = [part for part in parts if part not in known]
    if unknown:
        raise ValueError(f"no {what} is called {', '.join(unknown)}; there are {', '.join(known)}")
    return parts
