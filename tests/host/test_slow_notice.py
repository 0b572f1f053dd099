"""What takes long says so: a log line where standard error is no terminal, a bar where it is one."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from rich.console import Console

from mixbackend.host import slow_notice
from mixbackend.host.slow_notice import SlowNotice


def test_one_line_says_what_is_done(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(slow_notice, "AFTER_S", 0.01)
    monkeypatch.setattr(Console, "is_terminal", False)
    with caplog.at_level(logging.INFO, "mixbackend"), SlowNotice("compiling inference-0", 3) as notice:
        notice.advance()
        end = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < end:
            time.sleep(0.01)
        notice.advance()
    assert caplog.messages == ["compiling inference-0: 1 of 3 after 0.01 s"]


def test_what_is_quick_says_nothing_and_leaves_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    before = threading.active_count()
    with caplog.at_level(logging.INFO, "mixbackend"):
        for _ in range(5):
            with SlowNotice("compiling", 1) as notice:
                notice.advance()
    end = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before and caplog.messages == []


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(slow_notice, "AFTER_S", 0.01)
    monkeypatch.setattr(Console, "is_terminal", True)
    with SlowNotice("compiling inference-0", 3) as one, SlowNotice("compiling inference-1", 3):
        time.sleep(0.3)
        one.advance()
        time.sleep(0.3)
    assert "compiling inference-" in capfd.readouterr().err
