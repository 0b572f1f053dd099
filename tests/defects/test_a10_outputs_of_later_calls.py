"""Number, shape and type of a third party's outputs are looked at in every call."""

from __future__ import annotations

import pytest
import torch
from foreign_backends import Foreign, kinds, mixture_of, owners

CHANGES = {
    "shape": lambda outputs: [outputs[0][:1], *outputs[1:]],
    "broadcast": lambda outputs: [outputs[0][:, :1], *outputs[1:]],
    "dtype": lambda outputs: [outputs[0].double(), *outputs[1:]],
    "too few": lambda outputs: outputs[:-1],
    "too many": lambda outputs: [*outputs, outputs[0]],
    "no tensor": lambda outputs: [None, *outputs[1:]],
    "nothing": lambda outputs: None,
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_the_fifth_call_returns_something_else(tmp_path, change, dynamic):
    def behave(call):
        outputs = call.right()
        return outputs if call.number < 5 else CHANGES[change](outputs)

    def function(value):
        result = value.exp()
        return result, result.sum(-1)

    backend = Foreign(behave)
    with mixture_of(backend, folder=tmp_path) as mixture:
        compiled = torch.compile(function, backend=mixture, dynamic=dynamic)
        for _ in range(8):
            value = torch.randn(6, 8)
            for mine, theirs in zip(compiled(value), function(value), strict=True):
                assert mine.dtype is theirs.dtype
                torch.testing.assert_close(mine, theirs)
        assert backend.calls == 6
        assert kinds(mixture) == ["quarantine" if change == "nothing" else "verify_failed", "repair"]
        assert owners(mixture) == {"eager"}


def test_who_makes_outputs_as_the_region_says_is_not_asked(tmp_path):
    """The promise is a trait, and the first call is held against eager in any case."""
    backend = Foreign(lambda call: CHANGES["dtype"](call.right()), fixed_outputs=True)
    with mixture_of(backend, folder=tmp_path) as mixture:
        value = torch.randn(6, 8)
        torch.testing.assert_close(torch.compile(torch.exp, backend=mixture)(value), value.exp())
        assert kinds(mixture) == ["verify_failed", "repair"]
