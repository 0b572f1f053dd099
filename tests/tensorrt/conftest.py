"""TensorRT's Python package replaced by a stand-in that has the names of a recorded release; see ``fake/tensorrt``.

Regions of CPU tensors then go the whole way of the backend: verdicts, lowering, a build, an engine, calls.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch

from mixbackend.backends.tensorrt import TensorRtBackend, backend, building, plan, worker
from mixbackend.backends.tensorrt.building import RunBuild
from mixbackend.backends.tensorrt.sizes import shown_by
from mixbackend.contracts import Availability, CompiledRegion, InputRole, OpView, Region, TensorMeta, Unsupported
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.regions import whole_region
from mixbackend.graph.trace import trace_graph

HERE = Path(__file__).parent
RELEASES = sorted(path.stem for path in (HERE / "descriptions").glob("*.json"))
OLDEST, NEWEST = "8.6.1", "11.4.0.106"
GIVEN_ANEW = [release for release in RELEASES if release != OLDEST]
"""Releases whose engines take weights anew."""


class CpuTensorRt(TensorRtBackend):
    """The backend as it is, but for where its tensors are."""

    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def availability(self) -> Availability:
        return Availability(True, version=os.environ["FAKE_TENSORRT"])

    def _place(self) -> str:
        return f"stand-in for {os.environ['FAKE_TENSORRT']}"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ModuleType]:
    """Puts the stand-in of a release where ``import tensorrt`` finds it, here and in processes started from here."""

    def install(release: str = OLDEST, fault: str = "") -> ModuleType:
        monkeypatch.setenv("FAKE_TENSORRT", release)
        monkeypatch.setenv("FAKE_TENSORRT_FAULT", fault)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE / "fake"), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.syspath_prepend(str(HERE / "fake"))
        monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
        module = importlib.import_module("tensorrt")
        monkeypatch.setitem(sys.modules, "tensorrt", module)
        monkeypatch.setattr(backend, "installed_version", lambda: release)
        monkeypatch.setattr(building, "private_cache_folder", lambda name: tmp_path)
        plan._api.cache_clear()
        return module

    yield install
    plan._api.cache_clear()


class Bench:
    """Compiles functions as one region each, building in this process, which is quicker than one for each engine.

    Attributes:
        run_build: what builds; counted, and replaced by tests.
    """

    def __init__(self) -> None:
        self.run_build: RunBuild = lambda folder, seconds: worker.build_in(folder)
        self.backend = self.another_backend()
        self.builds = 0

    def another_backend(self) -> CpuTensorRt:
        """As a process of its own would have it."""
        return CpuTensorRt(self.build)

    def build(self, folder: Path, seconds: float) -> None:
        """Build what a folder asks for."""
        self.run_build(folder, seconds)
        self.builds += 1

    def views(self, function: Callable[..., Any], inputs: Sequence[Any], **keywords: Any) -> list[OpView]:
        """The ops of a function as the planner shows them."""
        return [item for item in self.region(function, inputs, **keywords).views if item.op != "getitem"]

    def refusals(self, function: Callable[..., Any], inputs: Sequence[Any], **keywords: Any) -> list[Unsupported]:
        """Every refusal of the backend for a function's ops."""
        verdicts = [self.backend.judge(view) for view in self.views(function, inputs, **keywords)]
        return [verdict for verdict in verdicts if isinstance(verdict, Unsupported)]

    def region(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        *,
        constants: Sequence[int] = (),
        weights: Sequence[int] = (),
        dynamic: bool = False,
        phase: Any = "inference",
    ) -> Region:
        """A function as one region."""
        roles = {place: PlaceholderRole(InputRole.CONSTANT) for place in constants}
        roles |= {place: PlaceholderRole(InputRole.PARAMETER) for place in weights}
        return whole_region(*trace_graph(function, inputs, roles=roles, dynamic=dynamic, phase=phase))

    def compile(self, region: Region) -> CompiledRegion:
        """Compile a region, all of whose ops must be taken."""
        refused = [item for item in map(self.backend.judge, region.views) if isinstance(item, Unsupported)]
        assert not refused, refused
        return self.backend.compile(region)


@pytest.fixture
def bench(stand_in: Any) -> Callable[..., Bench]:
    """A bench for a release."""

    def make(release: str = OLDEST, fault: str = "") -> Bench:
        stand_in(release, fault)
        return Bench()

    return make


def given(region: Region, values: Sequence[Any]) -> list[Any]:
    """A function's own arguments in the order of its region's inputs; sizes are read off them."""
    found: list[Any] = []
    for item in region.inputs:
        if isinstance(item.meta, TensorMeta):
            found.append(values[int(item.name.removeprefix("arg").removesuffix("_1"))])
        else:
            found.append(_size(region, item.meta, values))
    return found


def _size(region: Region, wanted: Any, values: Sequence[Any]) -> int:
    shown = {}
    for symbol in wanted.expression.free_symbols:
        place, axis = shown_by(symbol, region.inputs)  # type: ignore[misc]
        shown[symbol] = values[int(region.inputs[place].name.removeprefix("arg").removesuffix("_1"))].shape[axis]
    return int(wanted.expression.subs(shown))


def known(region: Region, inputs: Sequence[Any]) -> list[Any]:
    """What code is bound to: the constants among a region's inputs."""
    return [
        value if item.role is InputRole.CONSTANT else None for item, value in zip(region.inputs, inputs, strict=True)
    ]


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether a result is eager's but for rounding in its own type."""
    assert actual.dtype is expected.dtype and actual.shape == expected.shape
    if not actual.dtype.is_floating_point:
        return torch.equal(actual, expected)
    if not expected.numel():
        return True
    scale = max(1.0, float(expected.double().abs().max()))
    return float((actual.double() - expected.double()).abs().max()) <= 16 * torch.finfo(actual.dtype).eps * scale
