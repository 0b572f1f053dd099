"""A first call of zeros, one process or one size does not make a region right for ever."""

from __future__ import annotations

import pytest
import torch
from foreign_backends import Foreign, kinds, mixture_of

from mixbackend.execute import checked_call
from mixbackend.execute.region_code import MOST_UNPROVED
from mixbackend.host.process_facts import reset_for_tests


@pytest.fixture
def checks(monkeypatch):
    """Grows by one with every call that is held against eager."""
    seen: list[int] = []
    verify = checked_call.check_region
    monkeypatch.setattr(checked_call, "check_region", lambda *arguments: seen.append(1) or verify(*arguments))
    return seen


def squared(call):
    """Right for zeros and ones alone."""
    return [value * value for value in call.right()]


def same(value):
    return value.relu()


@pytest.mark.parametrize("first", [torch.zeros(4, 8), torch.ones(4, 8)], ids=["zeros", "constant outputs"])
def test_the_next_call_is_checked_too(tmp_path, first):
    with mixture_of(Foreign(squared), folder=tmp_path) as mixture:
        compiled = torch.compile(same, backend=mixture)
        for value in (first, first, torch.randn(4, 8), torch.randn(4, 8)):
            torch.testing.assert_close(compiled(value), same(value))
        assert kinds(mixture) == ["verify_failed", "repair"]


def test_zeros_are_not_remembered_by_later_processes(tmp_path):
    for process in range(5):
        reset_for_tests()
        with mixture_of(Foreign(squared), folder=tmp_path) as mixture:
            compiled = torch.compile(same, backend=mixture)
            compiled(torch.zeros(4, 8))
            value = torch.randn(4, 8)
            if process == 4:
                torch.testing.assert_close(compiled(value), same(value))
                assert kinds(mixture) == ["verify_failed", "repair"]


def test_a_result_that_is_always_constant_is_not_checked_for_ever(tmp_path, checks):
    def constant(value):
        return value.exp() * 0 + 3

    with mixture_of(Foreign(), folder=tmp_path) as mixture:
        compiled = torch.compile(constant, backend=mixture)
        for _ in range(MOST_UNPROVED + 5):
            value = torch.randn(4, 8)
            torch.testing.assert_close(compiled(value), constant(value))
        assert len(checks) == MOST_UNPROVED
        (event,) = mixture.report().events
        assert event.kind == "unverified"
        assert f"in {MOST_UNPROVED} checked calls" in event.detail


def test_a_region_without_inputs_has_one_result_and_one_check(tmp_path, checks):
    with mixture_of(Foreign(), folder=tmp_path) as mixture:
        compiled = torch.compile(lambda: torch.full((4, 8), 2.0) + 1, backend=mixture)
        for _ in range(4):
            torch.testing.assert_close(compiled(), torch.full((4, 8), 3.0))
        assert len(checks) <= 1
        assert kinds(mixture) == []


def test_each_process_confirms_until_three_have(tmp_path, checks):
    counts = []
    for another in (True, False, True, True, True, True):
        if another:
            reset_for_tests()
        with mixture_of(Foreign(), folder=tmp_path) as mixture:
            compiled = torch.compile(same, backend=mixture)
            for _ in range(3):
                compiled(torch.randn(4, 8))
        counts.append(len(checks))
    assert counts == [1, 2, 3, 4, 4, 4], "a process that comes twice counts once"


def test_sizes_far_from_those_that_were_checked(tmp_path, checks):
    def behave(call):
        outputs = call.right()
        return [value + 1 for value in outputs] if call.inputs[-1].shape[0] > 100 else outputs

    with mixture_of(Foreign(behave), folder=tmp_path) as mixture:
        compiled = torch.compile(same, backend=mixture, dynamic=True)
        for size in (17, 18, 30, 17, 90, 70, 30, 200, 201):
            value = torch.randn(size, 8)
            torch.testing.assert_close(compiled(value), same(value))
        assert len(checks) == 3, "at 17, 90 and 200 rows: a factor of two apart"
        assert kinds(mixture) == ["verify_failed", "repair"]


def test_a_check_that_fails_is_an_event_and_the_call_goes_on(tmp_path, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("cannot compare these")

    monkeypatch.setattr(checked_call, "check_region", broken)
    with mixture_of(Foreign(), folder=tmp_path) as mixture:
        compiled = torch.compile(same, backend=mixture)
        for _ in range(3):
            value = torch.randn(4, 8)
            torch.testing.assert_close(compiled(value), same(value))
        (event,) = mixture.report().events
        assert event.kind == "unverified"
        assert "cannot compare these" in event.detail
