"""Code for new weights is held against eager when it first runs: later bindings, later layers, later processes."""

from __future__ import annotations

import time

import pytest
import torch
from foreign_backends import Call, Foreign, kinds, mixture_of
from torch import nn

from mixbackend.execute import checked_call
from mixbackend.host.process_facts import reset_for_tests


class WrongFrom:
    """Right until the given binding, and off by a tenth from then on."""

    def __init__(self, binding: int) -> None:
        self.binding = binding

    def __call__(self, call: Call):
        outputs = call.right()
        return [value * 1.1 for value in outputs] if call.bound >= self.binding else outputs


def test_weights_that_change(tmp_path):
    backend = Foreign(WrongFrom(2), binds=True)
    with mixture_of(backend, folder=tmp_path) as mixture, torch.no_grad():
        model = nn.Linear(8, 8)
        compiled = torch.compile(model, backend=mixture)
        for step in range(4):
            value = torch.randn(4, 8)
            torch.testing.assert_close(compiled(value), model(value))
            if step == 1:
                model.weight.add_(1.0)
        assert "verify_failed" in kinds(mixture)


def test_a_layer_that_shares_code_with_one_that_was_checked(tmp_path):
    backend = Foreign(WrongFrom(2), only=["aten.addmm.default"], binds=True)
    with mixture_of(backend, folder=tmp_path) as mixture, torch.no_grad():
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        value = torch.randn(4, 8)
        torch.testing.assert_close(torch.compile(model, backend=mixture)(value), model(value))
        assert len(backend.compiled) == 1
        assert "verify_failed" in kinds(mixture)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_later_process_looks_at_some_rows(tmp_path, monkeypatch, wrong):
    looks: list[bool] = []
    original = checked_call._rows_are_right

    def look(*arguments):
        looks.append(original(*arguments))
        return looks[-1]

    monkeypatch.setattr(checked_call, "_rows_are_right", look)
    torch.manual_seed(0)
    model, value = nn.Linear(8, 8), torch.randn(40, 8)
    for process in range(5):
        reset_for_tests()
        backend = Foreign(WrongFrom(1 if wrong and process == 4 else 9), binds=True)
        with mixture_of(backend, folder=tmp_path) as mixture, torch.no_grad():
            compiled = torch.compile(model, backend=mixture)
            for _ in range(3):
                torch.testing.assert_close(compiled(value), model(value))
            assert ("verify_failed" in kinds(mixture)) is (wrong and process == 4)
    assert looks == [True, not wrong], "three processes check everything, later ones rows of their first call"


def test_checks_of_changing_weights_do_not_take_most_of_the_time(tmp_path, monkeypatch):
    """Weights that change before every call become live inputs when checking takes a good part of the time."""
    looked = checked_call._rows_are_right

    def slow(*arguments):
        time.sleep(0.02)
        return looked(*arguments)

    monkeypatch.setattr(checked_call, "_rows_are_right", slow)
    backend = Foreign(binds=True)
    with mixture_of(backend, folder=tmp_path) as mixture, torch.no_grad():
        model = nn.Linear(8, 8)
        compiled = torch.compile(model, backend=mixture)
        for _ in range(40):
            model.weight.add_(0.1)
            value = torch.randn(4, 8)
            torch.testing.assert_close(compiled(value), model(value))
        assert backend.bindings < 20
        assert "live inputs" in mixture.report().events[-1].detail
