"""A session's costs: measured when the first graph of a device asks; only read where measuring is forbidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mixbackend import Config
from mixbackend.backends.eager import EagerBackend
from mixbackend.calibrate import session_costs as session_costs_module
from mixbackend.calibrate.calibration import SWITCH, measuring_is_allowed
from mixbackend.calibrate.session_costs import CalibratedCosts
from mixbackend.contracts import DeviceModel
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.cost.device_priors import prior_device
from mixbackend.cost.priors import prior_rates
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.heterogeneous_cost import HeterogeneousCosts
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.storage import Storage

GPU = DeviceModel("cuda:0 test", (("float32", 5e13),), 4e12, 3e7, 8e12, 6e-6, 1, "probed", 1e-5, 1e10)


@pytest.fixture
def costs(tmp_path: Path) -> CalibratedCosts:
    tmp_path.chmod(0o700)
    return CalibratedCosts(Config(), [EagerBackend()], Storage(str(tmp_path), None, 1.0, {}), records=True)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Device types that were measured."""
    found: list[str] = []

    def measure(backends: Any, device_type: str, database: object, isolated: object) -> RooflineCostModel:
        found.append(device_type)
        device = GPU if device_type == "cuda" else prior_device("cpu")
        return RooflineCostModel(device, {item.name: prior_rates(item, device) for item in backends})

    monkeypatch.setattr(session_costs_module, "calibrated_costs", measure)
    return found


def _graph(*devices: str) -> Any:
    with fresh_fake_mode():
        values = [torch.empty(8, 8, device=device) for device in devices]
    return trace_graph(lambda *values: tuple(torch.ops.aten.tanh(value) for value in values), values)[1]


def test_a_device_is_measured_once_when_its_first_graph_asks(
    costs: CalibratedCosts, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert measured == []
    first, second = costs.of(_graph("cpu")), costs.of(_graph("cpu", "cpu"))
    assert first is second and measured == ["cpu"]


def test_rates_of_the_processor_are_not_measured_for_a_graph_on_a_gpu(
    costs: CalibratedCosts, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert isinstance(costs.of(_graph("cpu", "cuda")), HeterogeneousCosts)
    assert measured == ["cuda"]


def test_where_measuring_is_forbidden_costs_are_read(
    costs: CalibratedCosts, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    found: Any = costs.of(_graph("cpu"))
    assert measured == [] and found.rates["eager"].provenance == "prior"


@pytest.mark.parametrize(("value", "allowed"), [(None, True), ("1", True), ("0", False)])
def test_the_environment_may_forbid_measuring(
    value: str | None, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv(SWITCH, raising=False)
    else:
        monkeypatch.setenv(SWITCH, value)
    assert measuring_is_allowed() is allowed
