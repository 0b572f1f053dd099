"""What long benchmarks share: lines of progress where there is no terminal, a limit of time, names."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mixbackend.benchmarks.commands import progress as bench_progress
from mixbackend.benchmarks.commands.progress import chosen, names_in, time_limit


def test_lines_come_now_and_then() -> None:
    now = [0.0]
    screen = Console(file=io.StringIO(), width=80)
    show = bench_progress._in_lines(100.0, screen, lambda: now[0])
    for second in range(62):
        now[0] = float(second)
        show(f"second {second}", 1.0)
    assert screen.file.getvalue().splitlines() == [
        "1%, 0.0 min: second 0", "31%, 0.5 min: second 30", "61%, 1.0 min: second 60",
    ]  # fmt: skip


def test_time_is_over_after_so_many_minutes() -> None:
    now = [100.0]
    is_over, never = (time_limit(minutes, lambda: now[0]) for minutes in (2.0, 0.0))
    assert not is_over()
    now[0] += 121.0
    assert is_over() and not never()


def test_names() -> None:
    assert names_in(" a,b,,a ") == ("a", "b")
    assert chosen("", ("a", "b"), "thing") == ("a", "b") and chosen("b", ("a", "b"), "thing") == ("b",)
    with pytest.raises(ValueError, match="no thing is called c; there are a, b"):
        chosen("a,c", ("a", "b"), "thing")
