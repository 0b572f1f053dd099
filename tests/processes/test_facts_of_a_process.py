"""What is kept for a whole process is forgotten in one call, and what it did is undone."""

from __future__ import annotations

from typing import Any

import pytest

from mixbackend.host import threads as threads_module
from mixbackend.host.devices import device_name
from mixbackend.host.memory import keep_freed_memory
from mixbackend.host.process_facts import process_fact, reset_for_tests
from mixbackend.host.process_identity import process_identity
from mixbackend.host.threads import sharing


class Quiet:
    means = "a stand-in"

    def __init__(self, path: str) -> None:
        self.ended = 0

    def end(self) -> None:
        self.ended += 1


class Owner:
    """Of regions."""


def test_a_fact_is_found_once_and_again_after_a_reset() -> None:
    found: list[int] = []

    @process_fact
    def count() -> int:
        found.append(1)
        return len(found)

    assert (count(), count()) == (1, 1)
    reset_for_tests()
    assert count() == 2


def test_after_a_reset_it_counts_as_another_process() -> None:
    before = process_identity()
    assert process_identity() == before
    reset_for_tests()
    assert process_identity() != before


def test_what_the_user_decided_meanwhile_is_seen(monkeypatch: pytest.MonkeyPatch, fresh_process: None) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert not keep_freed_memory()
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_")
    assert not keep_freed_memory(), "it is asked once"


def test_the_policy_of_threads_is_undone(monkeypatch: pytest.MonkeyPatch, fresh_process: None) -> None:
    made: list[Quiet] = []

    def quieten(path: str) -> Quiet:
        made.append(Quiet(path))
        return made[-1]

    def rest(path: str) -> Any:
        raise AttributeError("no such function")

    monkeypatch.setattr(threads_module, "cores", lambda: 0)
    monkeypatch.setattr(threads_module, "decided_by_user", lambda runtime, environment: "")
    owner = Owner()
    sharing.act_through(lambda: ("/lib/libgomp.so",), quieten, rest)
    assert sharing.use(owner, ["openvino"]).outcome == "quiet"
    assert sharing.active and len(made) == 1
    reset_for_tests()
    assert not sharing.active and made[0].ended == 1
    del owner
    assert made[0].ended == 1


def test_names_of_devices_are_found_again() -> None:
    before = device_name("cpu")
    reset_for_tests()
    assert device_name("cpu") == before
