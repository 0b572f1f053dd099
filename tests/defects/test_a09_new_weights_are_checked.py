"""Code for new weights is held against eager when it first runs: later bindings, later layers, later processes."""

from __future__ import annotations

import pytest
import torch
from foreign_backends import Call, Foreign, kinds, mixture_of
from torch import nn

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


class WrongRows:
    """Right until the given call, and off by a tenth in some rows of its output from then on."""

    def __init__(self, rows: slice, call: int = 0) -> None:
        self.rows = rows
        self.call = call

    def __call__(self, call: Call):
        (output,) = call.right()
        if call.number >= self.call:
            output[self.rows] *= 1.1
        return [output]


ALL, ONE = slice(None), slice(1, 2)
"""Of 40 rows; of these only eight are looked at when not all are, and the second is not among them."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("process", "behave", "found"),
    [
        (2, WrongRows(ONE), True),
        (3, WrongRows(ALL), True),
        (3, WrongRows(ONE), False),
        (4, WrongRows(ALL), True),
        (4, WrongRows(ONE), False),
        (4, WrongRows(ALL, call=1), False),
    ],
)
def test_a_later_process_looks_at_some_rows_of_its_first_call(tmp_path, process, behave, found):
    """Three processes check everything; what later ones do not look at stays as it is."""
    torch.manual_seed(0)
    model, value = nn.Linear(8, 8), torch.randn(40, 8)
    for number in range(process + 1):
        reset_for_tests()
        backend = Foreign(behave if number == process else Call.right, binds=True)
        with mixture_of(backend, folder=tmp_path) as mixture, torch.no_grad():
            compiled = torch.compile(model, backend=mixture)
            results = [compiled(value) for _ in range(3)]
            wanted = model(value)
            right = all(torch.allclose(result, wanted, rtol=1e-4, atol=1e-5) for result in results)
            assert right is (found or number < process)
            assert ("verify_failed" in kinds(mixture)) is (found and number == process)


def test_checks_of_changing_weights_do_not_take_most_of_the_time(tmp_path):
    """Weights that change before every call become live inputs when checking takes a good part of the time."""
    backend = Foreign(binds=True)
    with mixture_of(backend, folder=tmp_path) as mixture, torch.no_grad():
        # What is checked by running it takes about as long as a call.
        model = nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 512), nn.Linear(512, 8))
        compiled = torch.compile(model, backend=mixture)
        for _ in range(40):
            model[0].weight.add_(0.1)
            value = torch.randn(256, 64)
            torch.testing.assert_close(compiled(value), model(value), rtol=1e-3, atol=1e-3)
        assert backend.bindings < 20
        assert "live inputs" in mixture.report().events[-1].detail
