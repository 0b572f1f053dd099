"""The TensorRT backend: regions as engines on NVIDIA GPUs.

Place: one backend among others; the planner knows nothing of it but the contract.
Input: regions of inference, static or with sizes in ranges. Output: engines, each built in a process of its own.
Invariants: TensorRT is imported only when an engine is opened; a verdict comes from the table that writes the model and
from what the installed release takes; weights that change are seen, since the code that binds them watches them.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from mixbackend.backends.tensorrt.availability import availability, installed_version
from mixbackend.backends.tensorrt.limits import limits, why_weights_inside
from mixbackend.backends.tensorrt.rates import FUSED, prior_rates
from mixbackend.backends.tensorrt.versions import Release, driver_release
from mixbackend.contracts import (
    Availability,
    Backend,
    BackendRates,
    BuildSeconds,
    CompiledRegion,
    DeviceModel,
    ErrorBudget,
    OpView,
    Pattern,
    Probe,
    Region,
    RegionConditions,
    RegionSketch,
    Traits,
    Unsupported,
    Verdict,
)
from mixbackend.contracts.gpu import gpu_fingerprint

if TYPE_CHECKING:
    from mixbackend.backends.tensorrt.building import RunBuild
    from mixbackend.backends.tensorrt.support import Support

_WRITING = 3
"""Rises whenever another model or another container is written for the same region: stored engines are then stale."""
_PROBED = frozenset({"matmul", "convolution", "attention", "normalization", "pointwise"})


class TensorRtBackend(Backend):
    """Regions built into engines by NVIDIA's TensorRT, versions 8.6 to 11.

    Args:
        run_build: builds engines; by default in another process.
    """

    name: ClassVar[str] = "tensorrt"
    contract_version: ClassVar[str] = "1.0"
    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def __init__(self, run_build: RunBuild | None = None) -> None:
        self._run_build = run_build

    def availability(self) -> Availability:
        """Whether the package, a GPU and its driver are here and fit together."""
        return availability()

    def fingerprint(self) -> str:
        """The release, the GPU, its driver, and what the environment says of building."""
        allowed = limits()
        building = f"writing={_WRITING} level={allowed.level} workspace={allowed.workspace_mb}"
        return f"{self._place()} {building} refit={int(not self._weights_inside)}"

    def _place(self) -> str:
        """What engines and timings of tactics hold for."""
        return f"tensorrt={installed_version()} driver={driver_release()} {gpu_fingerprint()}"

    def traits(self) -> Traits:
        """Weights are given to an engine in the time of copying them, where the release does that right; calls of one
        engine come one at a time."""
        return Traits(
            device_types=self.device_types,
            weights="baked" if self._weights_inside else "refit",
            capturable=True,
            packaged="native",
            # Kernels that split sums may add them up in any order.
            deterministic=False,
            reentrant=False,
            error_budget=ErrorBudget(factor=4.0, floor=64.0),
            fused=FUSED,
            concurrent_compile=True,
            row_major=True,
        )

    def judge(self, view: OpView) -> Verdict:
        """It takes what the lowering writes with nodes that the installed release takes."""
        return self._support.judge(view)

    def patterns(self) -> tuple[Pattern, ...]:
        """Attention that torch wrote out in float32 between halves, which engines compute in halves."""
        return self._support.patterns

    def conditions(self) -> RegionConditions:
        """Engines take long to build: they are for the heavy parts of inference."""
        return RegionConditions(
            minimum_ops=2,
            minimum_seconds=1e-6 * limits().least_us,
            must_contain=frozenset({"matmul", "convolution", "attention"}),
            phases=frozenset({"inference"}),
        )

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        """Regions with symbolic sizes that no tensor on their border shows."""
        from mixbackend.backends.tensorrt.support import unshown_size

        return unshown_size(sketch)

    def build_seconds(self, device_type: str) -> BuildSeconds:
        """Timing kernels: whole models of 120 to 700 ops took 34 to 227 s."""
        return BuildSeconds(region_s=10.0, op_s=0.1)

    def prior(self, device: DeviceModel) -> BackendRates | None:
        """Shares of the peak that engines usually reach."""
        return prior_rates(self.name, device)

    def probes(self, device: DeviceModel) -> tuple[Probe, ...]:
        """The standard ones of what decides placements: each costs the build of an engine."""
        return tuple(probe for probe in super().probes(device) if probe.op_class in _PROBED)

    def compile(self, region: Region) -> CompiledRegion:
        """Build the region's engine."""
        from mixbackend.backends.tensorrt.compilation import compile_region

        return compile_region(region, self._release, self._place(), self._run_build)

    def load(self, region: Region, artifact: bytes) -> CompiledRegion:
        """Take up an engine that was built before."""
        from mixbackend.backends.tensorrt.compilation import load_region

        return load_region(region, self._release, self._place(), artifact, self._run_build)

    @property
    def _weights_inside(self) -> bool:
        return installed_version() is not None and bool(why_weights_inside(self._release))

    @cached_property
    def _release(self) -> Release:
        return Release.of(installed_version() or "")

    @cached_property
    def _support(self) -> Support:
        from mixbackend.backends.tensorrt.support import Support

        return Support(self._release, self.device_types)
