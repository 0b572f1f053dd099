"""Peaks of a device and the settings that they hold under; no GPU is needed."""

from __future__ import annotations

from dataclasses import replace

import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.calibrate.device import bandwidths
from mixbackend.contracts import DeviceModel
from mixbackend.contracts.probes import standard_probes
from mixbackend.cost.device_priors import TENSOR_FLOAT, under_settings
from mixbackend.cost.priors import prior_rates
from mixbackend.cost.records import device_record, read_device

PEAKS = (("float32", 5e13), (TENSOR_FLOAT, 4e14), ("float16", 8e14))
GPU = DeviceModel("cuda:0 synthetic", PEAKS, 4e12, 3e7, 8e12, 6e-6, 1, "probed")


def test_float32_is_as_fast_as_the_users_settings_allow(precision):
    precision("highest")
    assert under_settings(GPU) is GPU
    exact = prior_rates(EagerBackend(), GPU).rate("matmul", "float32")
    precision("high")
    assert under_settings(GPU).peak("float32") == 4e14
    assert prior_rates(EagerBackend(), GPU).rate("matmul", "float32").flops_per_s == 8 * exact.flops_per_s


def test_a_processor_has_no_such_setting(precision):
    precision("high")
    cpu = DeviceModel("cpu synthetic", (("float32", 1e11),), 1e10, 1e6, 5e10, 2e-6, 2)
    assert under_settings(cpu) is cpu


def test_a_gpu_is_probed_with_its_narrow_type_first():
    probes = standard_probes(GPU)
    names = [probe.dtype for probe in probes]
    assert names.index("float32") > max(place for place, name in enumerate(names) if name == "float16")
    assert set(names) == {"float16", "float32"}
    halves = {probe.op_class for probe in probes if probe.dtype == "float16"}
    assert {"matmul", "convolution", "attention", "pointwise", "normalization"} <= halves


def test_bandwidth_is_that_of_memory_that_is_there():
    """Fresh pages cost several times what a copy does, and values between regions do not have any."""
    made: set[int] = set()

    def seconds(_, *calls):
        for call in calls:
            first, second = call(), call()
            assert first.data_ptr() == second.data_ptr()
            made.add(first.nbytes)
        return [1e-3 for _ in calls]

    found = bandwidths(torch.device("cpu"), seconds, (1 << 10, 1 << 20))
    assert found == (2e3 * (1 << 20), 2e3 * (1 << 20), 1 << 20)
    assert made == {1 << 10, 1 << 20}


def test_devices_that_were_measured_otherwise_are_measured_again():
    for device in (DeviceModel("cpu synthetic", (("float32", 1e11),), 1e10, 1e6, 5e10, 2e-6, 2, "probed"), GPU):
        device = replace(device, transfer_s=1e-5, transfer_bytes_per_s=1e10) if device is GPU else device
        record = device_record(device)
        assert read_device(record) == device
        assert read_device({**record, "version": 0}) is None
        assert read_device({name: value for name, value in record.items() if name != "version"}) is None
