"""How a region's engines are built and opened, whatever their weights hold.

Place: between ``compilation`` and ``building`` or ``running``; the package ``tensorrt`` is imported below this module
alone. Input: a region. Output: ``EnginePlan``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

import torch

from mixbackend.backends.tensorrt.api import Api, Settings
from mixbackend.backends.tensorrt.building import Built, RunBuild, Values, build, in_another_process
from mixbackend.backends.tensorrt.limits import limits
from mixbackend.backends.tensorrt.model import Prepared, prepare
from mixbackend.backends.tensorrt.profiles import Profile, profiles
from mixbackend.backends.tensorrt.running import Engine
from mixbackend.backends.tensorrt.versions import Release
from mixbackend.contracts import Region
from mixbackend.contracts.torch_compat import rounds_convolutions, rounds_products


@dataclass(frozen=True)
class EnginePlan:
    """What is needed to build and open a region's engines.

    Attributes:
        prepared: the region as a model.
        profiles: of its sizes.
        tf32: whether float32 products may be computed in TF32.
        device: where tensors are.
        key: of everything that timings of tactics depend on.
        run_build: builds engines.
    """

    prepared: Prepared
    profiles: tuple[Profile, ...]
    tf32: bool
    device: torch.device
    key: str
    run_build: RunBuild

    @staticmethod
    def of(region: Region, release: Release, key: str, run_build: RunBuild | None = None) -> EnginePlan:
        """The plan of a region.

        Raises:
            LoweringError: the region has no ONNX form although its ops were claimed.
        """
        prepared = prepare(region, release)
        device = region.outputs[0].meta.device
        run = run_build or in_another_process
        return EnginePlan(prepared, profiles(prepared.entrances), _may_round(region), device, key, run)

    @property
    def sizes(self) -> str:
        """Text of the profiles."""
        return json.dumps([profile.shapes for profile in self.profiles])

    def build(self, values: Values, refit: bool) -> Built:
        """Build an engine, see ``building.build``."""
        allowed = limits()
        settings = Settings(allowed.workspace_mb << 20, allowed.level, refit, self.tf32, self.prepared.halves)
        return build(self.prepared, self.profiles, settings, values, self.key, self.run_build)

    def open(self, engine: bytes | memoryview) -> Engine:
        """Open an engine that was built so.

        Raises:
            ValueError: TensorRT does not take it.
        """
        return Engine(_api(), engine, self.prepared, self.profiles, self.device)


@lru_cache(maxsize=1)
def _api() -> Api:
    import tensorrt

    # What TensorRT says while it runs an engine is told by what it returns.
    return Api(tensorrt, lambda message: None)


def _may_round(region: Region) -> bool:
    """Whether float32 products may be computed in TF32: where the user lets torch do so for all that the region has."""
    classes = {view.op_class for view in region.views}
    convolutions = rounds_convolutions() or "convolution" not in classes
    products = rounds_products() or not classes & {"matmul", "attention"}
    return convolutions and products
