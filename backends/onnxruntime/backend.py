"""The ONNX Runtime backend: regions as ONNX models on the CPU.

Place: one backend among others; the planner knows nothing of it but the contract.
Input: regions of ops that are in the lowering's table. Output: sessions, zero copy both ways.
Invariants: the runtime is imported only when something is compiled or loaded; weights are inputs at every call, so
updates are always seen, but for constants that are bound and watched; a verdict comes from the same table that writes
the model.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import cached_property, lru_cache
from typing import ClassVar

from mixbackend.backends.onnxruntime.halves import steps_over_halves
from mixbackend.backends.onnxruntime.rates import prior_rates
from mixbackend.contracts import (
    BOOLEANS,
    FLOATS,
    INTEGERS,
    Availability,
    Backend,
    BackendRates,
    BuildSeconds,
    CompiledRegion,
    DeviceModel,
    ErrorBudget,
    OpClass,
    OpView,
    Region,
    RegionSketch,
    Supported,
    SupportTable,
    SymbolicSize,
    Traits,
    Unsupported,
    Verdict,
    thread_policy,
)

_OLDEST = (1, 23)
_LOWERING = 7
"""Rises whenever the lowering writes other models for the same region: stored artifacts are then stale."""
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-training")
_DTYPES = FLOATS | INTEGERS | BOOLEANS
_FREE = frozenset({"view", "copy", "factory"})
_HEAVY = frozenset({"matmul", "convolution", "attention"})
_FUSED: frozenset[tuple[OpClass, OpClass]] = frozenset(
    {
        ("matmul", "pointwise"),
        ("convolution", "pointwise"),
        ("convolution", "normalization"),
        ("view", "matmul"),
    }
)
"""What the runtime's own optimiser fuses for live weights: bias and activation into products and convolutions."""


class OnnxRuntimeBackend(Backend):
    """Regions compiled to ONNX and run by ONNX Runtime's CPU provider."""

    name: ClassVar[str] = "onnxruntime"
    contract_version: ClassVar[str] = "1.0"

    def availability(self) -> Availability:
        for package in ("onnxruntime", "onnx"):
            if importlib.util.find_spec(package) is None:
                return Availability(False, f"{package} is not installed: pip install 'mixbackend[onnxruntime]'")
        version = installed_version()
        if version is None:
            return Availability(False, "onnxruntime has no version: its installation is damaged")
        if _numbers(version) < _OLDEST:
            needed = ".".join(map(str, _OLDEST))
            return Availability(False, f"onnxruntime {version} is too old, needed {needed} or newer", version)
        return Availability(True, version=version)

    def fingerprint(self) -> str:
        return f"onnxruntime={installed_version()} lowering={_LOWERING} threads={thread_policy().threads}"

    def traits(self) -> Traits:
        return Traits(
            device_types=frozenset({"cpu"}),
            weights="baked",
            fixed_outputs=True,
            packaged="data",
            reentrant=True,
            deterministic=True,
            error_budget=ErrorBudget(factor=4.0, floor=64.0),
            fused=_FUSED,
            compiles_behind=frozenset({"cpu"}),
            row_major=True,
            thread_pool="onnxruntime",
        )

    def loading(self, device_type: str) -> str:
        """Models are read by every release that it takes, with any number of threads."""
        return f"onnx model of lowering {_LOWERING}"

    def judge(self, view: OpView) -> Verdict:
        refusal = _common_refusal(view)
        if refusal is not None:
            return refusal
        # Parts of a result stay with the op that made it; its verdict is theirs.
        return Supported() if view.op == "getitem" else self._support.judge(view)

    def compile(self, region: Region) -> CompiledRegion:
        from mixbackend.backends.onnxruntime.compilation import compile_region

        return compile_region(region)

    def load(self, region: Region, artifact: bytes) -> CompiledRegion:
        from mixbackend.backends.onnxruntime.compilation import load_region

        return load_region(region, artifact)

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        """A session is not worth entering for views, or for one cheap op that eager starts in a microsecond."""
        working = [view for view in sketch.views if view.op_class not in _FREE and view.op != "getitem"]
        if not working:
            return Unsupported("region-too-small", "nothing but views, copies and constants")
        if len(working) == 1 and working[0].op_class not in _HEAVY:
            return Unsupported("region-too-small", f"{working[0].op} alone does not pay for entering a session")
        return None

    def build_seconds(self, device_type: str) -> BuildSeconds:
        """Writing the model, and opening a session that optimises it."""
        return BuildSeconds(region_s=0.05, op_s=0.001)

    def prior(self, device: DeviceModel) -> BackendRates | None:
        return prior_rates(self.name, device)

    @cached_property
    def _support(self) -> SupportTable:
        from mixbackend.backends.common.onnx import TABLE

        return SupportTable({name: entry.rule for name, entry in TABLE.items()})


def _common_refusal(view: OpView) -> Unsupported | None:
    """What no op of the table takes."""
    for meta in (*view.input_tensors, *view.output_tensors):
        if meta.device.type != "cpu":
            return Unsupported("device", f"{meta} is not on the CPU")
        if meta.dtype not in _DTYPES:
            return Unsupported("dtype", f"{meta.dtype} in {view.op}")
    if steps_over_halves(view):
        return Unsupported(
            "dtype", f"{view.op} over halves: the runtime computes them in float32 and may not round them"
        )
    for meta in () if view.op == "getitem" else view.input_tensors:
        if any(size == 0 for size in meta.shape):
            return Unsupported("declined", f"{meta} is empty: there is nothing to compute")
    if any(_holds_symbol(value) for _, value in view.node.arguments):
        return Unsupported("dynamic-shape", "a symbolic size is written into the arguments")
    return None


def _holds_symbol(argument: object) -> bool:
    if isinstance(argument, tuple):
        return any(_holds_symbol(item) for item in argument)
    return isinstance(argument, SymbolicSize)


@lru_cache(maxsize=1)
def installed_version() -> str | None:
    """Version without importing the runtime, under whichever of its package names it came."""
    for package in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
