"""What eager raises, too, is the input's error: the user sees eager's own words, and nobody is quarantined."""

from __future__ import annotations

import pytest
import torch
from foreign_backends import Foreign, kinds, mixture_of, owners

from mixbackend.contracts import RegionRunError


def refusing(call):
    """A library with checks of its own."""
    indices = next(value for value in call.inputs if isinstance(value, torch.Tensor) and value.dtype is torch.int64)
    if int(indices.max()) >= 10:
        raise ValueError("bad request")
    return call.right()


def rows(table, indices):
    return torch.embedding(table, indices) + 1


@pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
@pytest.mark.parametrize("policy", ["repair", "raise"])
def test_a_bad_index_is_the_users(tmp_path, policy, first):
    table = torch.randn(10, 4)
    bad, good = torch.tensor([1, 12]), torch.tensor([1, 2])
    for process in range(2):
        backend = Foreign(refusing)
        with mixture_of(backend, folder=tmp_path, on_failure=policy) as mixture:
            compiled = torch.compile(rows, backend=mixture)
            if not first:
                torch.testing.assert_close(compiled(table, good), rows(table, good))
            with pytest.raises(IndexError, match="out of range"):
                compiled(table, bad)
            torch.testing.assert_close(compiled(table, good), rows(table, good))
            assert kinds(mixture) == [], process
            assert owners(mixture) == {"foreign"}


def corrected(call):
    """A library that reads some row for an index that is out of range, and says nothing."""
    call.inputs = [
        value.clamp(max=9) if isinstance(value, torch.Tensor) and value.dtype is torch.int64 else value
        for value in call.inputs
    ]
    return call.right()


@pytest.mark.parametrize("policy", ["repair", "raise"])
def test_a_bad_index_that_is_not_told_is_the_users(tmp_path, policy):
    """Where a call is checked, eager's error is seen; results that eager does not have are not returned."""
    table = torch.randn(10, 4)
    bad, good = torch.tensor([1, 12]), torch.tensor([1, 2])
    with mixture_of(Foreign(corrected), folder=tmp_path, on_failure=policy) as mixture:
        compiled = torch.compile(rows, backend=mixture)
        with pytest.raises(IndexError, match="out of range"):
            compiled(table, bad)
        torch.testing.assert_close(compiled(table, good), rows(table, good))
        assert kinds(mixture) == []
        assert owners(mixture) == {"foreign"}


def test_a_counter_that_eager_would_have_written_is_left_to_eager(tmp_path):
    """Strictly, too, eager is asked on copies."""

    def fail(call):
        raise ValueError("no")

    with mixture_of(Foreign(fail, writes_inputs=True), folder=tmp_path, on_failure="raise") as mixture:

        def count(total, value):
            total.add_(1)
            return value.exp()

        total = torch.zeros(4)
        compiled = torch.compile(count, backend=mixture)
        with pytest.raises(RegionRunError):
            compiled(total, torch.randn(4))
        assert not total.any()
