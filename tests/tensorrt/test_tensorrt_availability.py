"""Why TensorRT cannot be used: one sentence for each cause; and without it nothing changes for anyone."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable

import pytest
import torch

from mixbackend import registry
from mixbackend.backends.tensorrt import TensorRtBackend, availability
from mixbackend.backends.tensorrt.limits import Limits, limits


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretends a machine: the version of TensorRT, its package, the driver, the GPU."""

    def pretend(
        version: str | None = "10.16.1.11",
        package: str = "tensorrt-cu13-bindings",
        driver: tuple[int, int] | None = (13, 0),
        capability: tuple[int, int] = (9, 0),
        gpu: str = "",
        found: tuple[str, ...] = ("tensorrt", "onnx"),
    ) -> None:
        def metadata_version(name: str) -> str:
            if version is not None and name == package:
                return version
            raise importlib.metadata.PackageNotFoundError(name)

        availability.installed_version.cache_clear()
        monkeypatch.setattr(importlib.metadata, "version", metadata_version)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in found else None)
        monkeypatch.setattr(availability, "why_no_gpu", lambda: gpu)
        monkeypatch.setattr(availability, "driver_release", lambda: driver)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    yield pretend
    availability.installed_version.cache_clear()


def _reason() -> str:
    answer = TensorRtBackend().availability()
    assert answer.available == (not answer.reason)
    return answer.reason


def test_a_fitting_machine_has_it(machine) -> None:
    for version, package in (("8.6.0", "tensorrt"), ("10.0.1", "tensorrt-cu12"), ("11.4.0.106", "tensorrt")):
        machine(version, package)
        assert not _reason()
        assert TensorRtBackend().availability().version == version
    machine(driver=None)
    assert not _reason(), "a driver that does not tell its version is not held against it"


@pytest.mark.parametrize(
    ("pretended", "wanted"),
    [
        ({"found": ("onnx",)}, "tensorrt is not installed: pip install"),
        ({"found": ("tensorrt",)}, "onnx is not installed: pip install 'mixbackend"),
        ({"version": None}, "tensorrt has no version"),
        ({"version": "8.5.3.1"}, "TensorRT 8.5 is not served, needed 8.6 to 11"),
        ({"version": "12.0.0.1"}, "TensorRT 12.0 is not served"),
        ({"version": "nightly"}, "'nightly', which is none"),
        ({"gpu": "torch finds no CUDA device"}, "torch finds no CUDA device"),
        ({"driver": (12, 4)}, "built for CUDA 13, the driver serves 12.4: update the driver"),
        ({"version": "8.6.0", "package": "tensorrt", "driver": (11, 8)}, "built for CUDA 12, the driver serves 11.8"),
        ({"version": "8.6.0", "package": "tensorrt", "capability": (10, 0)}, "no kernels for compute capability 10.0"),
    ],
)
def test_each_cause_is_told(machine, pretended, wanted) -> None:
    machine(**pretended)
    assert wanted in _reason()


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("LEVEL", "9", "MIXBACKEND_TENSORRT_LEVEL='9', needed a whole number from 0 to 5"),
        ("SECONDS", "soon", "MIXBACKEND_TENSORRT_SECONDS='soon'"),
        ("BUILDS", "-1", "MIXBACKEND_TENSORRT_BUILDS='-1'"),
    ],
)
def test_wrong_limits_are_told(machine, monkeypatch, name, value, wanted) -> None:
    machine()
    monkeypatch.setenv(f"MIXBACKEND_TENSORRT_{name}", value)
    assert wanted in _reason()


def test_limits_come_from_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("MIXBACKEND_TENSORRT_SECONDS", "30")
    monkeypatch.setenv("MIXBACKEND_TENSORRT_LEVEL", "")
    assert limits() == Limits(seconds=30)


def test_without_the_package_it_is_listed_and_left_out() -> None:
    if importlib.util.find_spec("tensorrt") is not None and torch.cuda.is_available():
        pytest.skip("TensorRT can be used here")
    with registry.isolated_registry(discover=True):
        (info,) = [item for item in registry.backends() if item.name == "tensorrt"]
        assert not info.available and info.reason and info.origin.startswith("mixbackend")
        assert "tensorrt" not in [backend.name for backend in registry.resolve()]


def test_the_least_work_of_an_engine_is_said_by_the_environment(machine, monkeypatch) -> None:
    assert TensorRtBackend().conditions().minimum_seconds == pytest.approx(30e-6)
    monkeypatch.setenv("MIXBACKEND_TENSORRT_LEAST_US", "0")
    assert TensorRtBackend().conditions().minimum_seconds == 0.0
