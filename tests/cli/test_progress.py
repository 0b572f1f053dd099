"""What takes long says so on standard error: in lines now and then where nobody could see one that changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from mixbackend.commands.output import progress_shown


def _until(condition: Callable[[str], object], capsys: pytest.CaptureFixture[str], seconds: float = 10.0) -> str:
    told, end = "", time.monotonic() + seconds
    while not condition(told) and time.monotonic() < end:
        told += capsys.readouterr().err
        time.sleep(0.01)
    return told


def test_lines_say_what_goes_on_now(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Console, "is_terminal", False)
    with progress_shown("loading the backend", after_s=0.02, every_s=0.02) as show:
        assert _until(lambda told: told, capsys).splitlines()[0] == "loading the backend"
        show("claims: 1 of 9 questions")
        told = _until(lambda told: told.count("1 of 9") > 1, capsys)
    assert told.count("claims: 1 of 9 questions\n") > 1


def test_what_is_quick_says_nothing_and_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Console, "is_terminal", False)
    before = threading.active_count()
    with pytest.raises(KeyError), progress_shown("loading") as show:
        show("asking")
        raise KeyError
    assert threading.active_count() == before and capsys.readouterr().err == ""


def test_between_two_lines_lies_some_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Console, "is_terminal", False)
    with progress_shown("loading", after_s=0.01, every_s=60.0) as show:
        assert _until(lambda told: told, capsys) == "loading\n"
        for number in range(5):
            show(f"question {number}")
            time.sleep(0.01)
    assert capsys.readouterr().err == ""
