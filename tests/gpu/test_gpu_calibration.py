"""Rates of a real GPU: measured in the time that they are given, gone on with, and good enough to place by."""

from __future__ import annotations

import time

import pytest
import torch

from mixbackend import registry
from mixbackend.calibrate.calibration import calibrated_costs
from mixbackend.storage import Database

pytestmark = pytest.mark.gpu

BUDGET_S = 45.0
LEEWAY_S = 30.0
"""A probe that was begun is ended, and what was compiled is timed."""


@pytest.fixture
def database(tmp_path, monkeypatch):
    monkeypatch.setenv("MIXBACKEND_CALIBRATE", "1")
    return Database(tmp_path / "rates.sqlite")


def test_it_fits_its_time_and_is_gone_on_with(database):
    backends = registry.resolve()
    for _ in range(2):
        begin = time.perf_counter()
        model = calibrated_costs(backends, "cuda", database, budget_s=BUDGET_S)
        assert time.perf_counter() - begin < BUDGET_S + LEEWAY_S
    eager = model.rates["eager"]
    for row in ("matmul", "convolution/channels_last", "attention", "pointwise"):
        assert eager.rate(row, "float16").provenance == "probed", row
        assert eager.rate(row, "bfloat16").provenance == "probed", row
    # Queueing an op takes longer than the pause between two kernels.
    assert 1e-6 < eager.rate("pointwise", "float32").overhead_s < eager.host.op("pointwise") < 1e-4
    assert model.device.transfer_s > 1e-6


def test_libraries_are_no_slower_than_eager_which_calls_them_too(database):
    names = {"eager", "cudnn", "cublaslt"}
    backends = [item for item in registry.resolve() if item.name in names]
    rates = calibrated_costs(backends, "cuda", database, budget_s=BUDGET_S).rates
    for name, row in (("cudnn", "convolution/channels_last"), ("cublaslt", "matmul")):
        own, usual = (rates[item].rate(row, "float16") for item in (name, "eager"))
        assert own.flops_per_s > 0.7 * usual.flops_per_s, (name, row)


def test_inputs_of_probes_leave_the_random_stream_of_the_gpu_alone(gpu):
    from mixbackend.cost.device_priors import prior_device

    before = torch.cuda.get_rng_state(gpu)
    for backend in registry.resolve():
        if backend.name == "cublaslt":
            for probe in backend.probes(prior_device("cuda")):
                assert all(value.device.type == "cuda" for value in probe.inputs())
    assert torch.equal(before, torch.cuda.get_rng_state(gpu))
