"""Whole graphs on a backend of this process are tried in the user's calls: built here, since no other can find it."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
from dynamo_functions import as_it_is
from flat_costs import FlatCosts
from stand_in_backends import settle, try_at_once

import mixbackend
from mixbackend.backends.eager import EagerBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.cost import costs as costs_module
from mixbackend.cost.costs import SessionCosts
from mixbackend.registry import isolated_registry
from mixbackend.select.live import processor_challengers


def test_it_is_tried_whatever_its_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_at_once(monkeypatch)
    monkeypatch.delenv("MIXBACKEND_BACKGROUND", raising=False)
    monkeypatch.setattr(processor_challengers, "LEAST_S", 0.0)
    monkeypatch.setattr(SessionCosts, "comparable", lambda self, graph: {"as_it_is"})
    costs = FlatCosts(seconds={"as_it_is": 1.0})
    torch._dynamo.reset()
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()), torch.randn(8, 64)
    priced = mock.patch.object(costs_module, "cost_model", lambda *_, **__: costs)
    with priced, isolated_registry(EagerBackend()), torch.no_grad():
        backends = [mixbackend.from_dynamo(as_it_is), "eager"]
        mixture = Mixture(load_config({"backends": backends, "cache": {"dir": str(tmp_path)}}))
        compiled = torch.compile(model, backend=mixture)
        settle(mixture, lambda: torch.testing.assert_close(compiled(x), model(x)))
        (graph,) = mixture.report().to_dict()["graphs"]
    torch._dynamo.reset()
    happened = graph["selection"]["happened"]
    (tried,) = [item for item in happened if item["challenger"] == "as_it_is"]
    assert tried["change"] in ("kept", "switched"), happened
