"""Outputs that share memory begin where eager's do, also where AOTAutograd makes them once more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mixbackend
from mixbackend.graph.output_offsets import beginning_at

Outputs = tuple[Tensor, ...]


def half_of_a_written_input(value: Tensor) -> Outputs:
    value.mul_(2)
    return (value.chunk(2, -1)[-1],)


def halves_of_a_result(value: Tensor) -> Outputs:
    return (value * 2).chunk(2, -1)


def rows_from_the_middle(value: Tensor) -> Outputs:
    value.add_(1)
    return value[value.shape[0] // 2 :], value.sum()


def expanded_rows_from_the_middle(value: Tensor) -> Outputs:
    value.add_(1)
    return (value[value.shape[0] // 2 :, :1].expand(-1, 7),)


PROGRAMS = (half_of_a_written_input, halves_of_a_result, rows_from_the_middle, expanded_rows_from_the_middle)


def begins(outputs: Outputs, value: Tensor) -> list[tuple[object, ...]]:
    """Values, where they begin, and, but for training, whose memory they share: there AOTAutograd copies some."""
    places = {value.untyped_storage().data_ptr(): "input"}
    for output in outputs:
        places.setdefault(output.untyped_storage().data_ptr(), f"storage {len(places)}")
    owners = ["" if value.requires_grad else places[output.untyped_storage().data_ptr()] for output in outputs]
    return [
        (output.tolist(), output.stride(), output.storage_offset(), owner)
        for output, owner in zip(outputs, owners, strict=True)
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_they_are_as_in_eager(program: Callable[[Tensor], Outputs], grad: bool, dynamic: bool) -> None:
    backend = mixbackend.auto({"backends": ["codegen", "eager"]})
    compiled = torch.compile(program, backend=backend, dynamic=dynamic)
    for size in (5, 6):
        value = torch.arange(1.0, size * size + 1).view(size, size).requires_grad_(grad)
        # A leaf that needs a gradient is not written in place.
        mine, eager = value * 1, value * 1
        expected, found = program(eager), compiled(mine)
        assert begins(found, mine) == begins(expected, eager)
        assert torch.equal(mine, eager)
        if grad:
            given, wanted = (
                torch.autograd.grad(sum(item.square().sum() for item in items), value) for items in (found, expected)
            )
            torch.testing.assert_close(given, wanted)


def test_what_begins_right_is_not_copied() -> None:
    value = torch.arange(6.0)[2:]
    assert beginning_at(value, 2) is value
    moved = beginning_at(value, 3)
    assert torch.equal(moved, value)
    assert moved.storage_offset() == 3


def test_a_view_of_a_detached_output_needs_no_gradient() -> None:
    def function(value: Tensor) -> Outputs:
        doubled = value * 2
        detached = doubled.detach()
        row = detached.select(0, 0)
        detached[1] = 1
        return doubled, row

    torch._dynamo.reset()
    backend = mixbackend.auto({"backends": ["codegen", "eager"]})
    value = torch.randn(3, 4, requires_grad=True)
    doubled, row = torch.compile(function, backend=backend)(value)
    assert (doubled.requires_grad, row.requires_grad) == (True, False)
    assert row.data_ptr() == doubled.data_ptr()
    (found,) = torch.autograd.grad(doubled.sum(), value)
    assert torch.equal(found, torch.full_like(value, 2))
