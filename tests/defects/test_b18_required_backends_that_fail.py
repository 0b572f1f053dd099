"""A required backend that fails at run time: strict raises in every call, otherwise an event names the rule and the
report names who runs."""

from __future__ import annotations

import pytest
import torch
from foreign_backends import Foreign, kinds, mixture_of, owners

from mixbackend.contracts import RegionRunError, VerificationError

RULE = {"match": {"op": "aten.exp*"}, "require": "foreign"}


def fail(call):
    raise RuntimeError("device lost")


def wrong(call):
    return [value + 1 for value in call.right()]


@pytest.mark.parametrize(("behave", "kind"), [(fail, "quarantine"), (wrong, "verify_failed")])
def test_eager_runs_and_the_event_names_the_rule(tmp_path, behave, kind):
    backend = Foreign(behave)
    with mixture_of(backend, folder=tmp_path, rules=[RULE]) as mixture:
        compiled = torch.compile(lambda value: value.exp().sin() + 1, backend=mixture)
        for _ in range(3):
            value = torch.randn(4)
            torch.testing.assert_close(compiled(value), value.exp().sin() + 1)
        assert backend.calls == 1
        assert kinds(mixture) == [kind, "fallback", "repair"]
        assert "require foreign" in mixture.report().events[1].detail
        assert owners(mixture) == {"eager"}
        mixture.report(advice=True).to_text()


@pytest.mark.parametrize(("behave", "error"), [(fail, RegionRunError), (wrong, VerificationError)])
def test_strict_raises_in_every_call(tmp_path, behave, error):
    with mixture_of(Foreign(behave), folder=tmp_path, rules=[RULE], on_failure="raise") as mixture:
        compiled = torch.compile(lambda value: value.exp().sin() + 1, backend=mixture)
        for _ in range(3):
            with pytest.raises(error):
                compiled(torch.randn(4))


def test_failing_after_the_first_call(tmp_path):
    backend = Foreign()
    with mixture_of(backend, folder=tmp_path, rules=[RULE]) as mixture:
        compiled = torch.compile(lambda value: value.exp().sin() + 1, backend=mixture)
        for call in range(6):
            backend.behave = fail if call == 3 else backend.behave
            value = torch.randn(4)
            torch.testing.assert_close(compiled(value), value.exp().sin() + 1)
        assert kinds(mixture) == ["quarantine", "fallback", "repair"]
        assert owners(mixture) == {"eager"}
