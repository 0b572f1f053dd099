"""By rates that state an error a plan mixes backends only where that saves more than the error; a first call probes
nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mixbackend.contracts import BackendRates, DeviceModel, OpRate
from mixbackend.cost import costs
from mixbackend.cost.costs import SessionCosts
from mixbackend.cost.model import cost_model
from mixbackend.cost.switches import SWITCH


class Rated:
    """Mixed into a loopback: so many FLOP/s for products, and for anything else."""

    products = loops = 1e10
    stated_error = 0.0

    def prior(self, device: DeviceModel) -> BackendRates:
        rows = (("matmul", self.products), *((name, self.loops) for name in ("pointwise", "normalization", "softmax")))
        rates = tuple((row, "float32", OpRate(0.0, flops)) for row, flops in rows)
        return BackendRates(self.name, 0.0, 0.0, rates=rates, error=self.stated_error)  # type: ignore[attr-defined]


@pytest.fixture
def owners(
    loopback: Any, make_mixture: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], set[str]]:
    """Who runs a product and a softmax, where a mixture of two saves a fifth and their rates state an error."""

    monkeypatch.setattr(costs, "cost_model", cost_model)  # tests of this folder have flat costs otherwise

    def found(error: float) -> set[str]:
        kind = type(loopback)
        common = {"stated_error": error, "fingerprint": lambda self: self.name}
        # The one takes 33 us for the product and 15 for the loop, the other 67 and next to nothing.
        one = type("One", (Rated, kind), {**common, "name": "one", "products": 1e12, "loops": 6e10})()
        two = type("Two", (Rated, kind), {**common, "name": "two", "products": 5e11, "loops": 1e15})()
        mixture = make_mixture(one, two, select="off", verify={"when": "off"})
        model = torch.compile(Product(), backend=mixture)
        with torch.no_grad():
            model(torch.randn(256, 256))
        (graph,) = mixture.report().graphs
        return set(graph.nodes_per_backend())

    return found


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(value), -1)


def test_stated_errors_decide_whether_a_plan_mixes(owners: Callable[[float], set[str]]) -> None:
    assert owners(0.0) == {"one", "two"}
    torch._dynamo.reset()
    assert len(owners(1.5)) == 1


def test_the_error_is_that_of_the_plans_own_backends(
    owners: Callable[[float], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []

    def error(self: SessionCosts, graph: object, names: Any) -> float:
        asked.append(set(names))
        return 0.0

    monkeypatch.setattr(SessionCosts, "error", error)
    assert owners(1.5) == {"one", "two"} and asked[0] == {"one", "two"}


FIRST_CALL = """
import sys, torch, mixbackend
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()), backend=mixbackend.auto())
with torch.no_grad():
    model(torch.randn(8, 64))
print(sorted(name for name in sys.modules if name in ("mixbackend.calibrate.prober", "mixbackend.calibrate.probing")))
from mixbackend.storage import Database
print(sorted({kind for kind, _, _ in Database.open().all_rates()}))
"""


def test_a_first_call_without_any_cache_looks_and_probes_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), SWITCH: "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL], env=environment, capture_output=True, text=True, check=True
    )
    loaded, kinds = done.stdout.splitlines()[-2:]
    assert loaded == "[]" and kinds == "['look']"
