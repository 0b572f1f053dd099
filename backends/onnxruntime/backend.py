"""The ONNX Runtime backend: regions as ONNX models on the CPU.

Place: one backend among others; the planner knows nothing of it but the contract.
Input: regions whose ops are in the lowering's table. Output: sessions, zero copy both ways.
Invariants: the runtime is imported only when something is compiled or loaded; weights are inputs at every call, so
updates are always seen, but for constants that somebody binds and watches; a verdict comes from the same table that
writes the model.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import cached_property, lru_cache
from typing import ClassVar

import torch

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
_LOWERING = 5
"""Rises whenever the lowering writes other models for the same region: stored artifacts are then stale."""
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-training")
_DTYPES = FLOATS | INTEGERS | BOOLEANS
_STEPS = frozenset(
    f"aten.{name}"
    for name in (
        *(f"{name}.{form}" for name in "eq ne lt le gt ge fmod remainder".split() for form in ("Tensor", "Scalar")),
        *(f"{name}.default" for name in "argmax argmin ceil floor round sign trunc isinf floor_divide".split()),
        *(f"logical_{name}.default" for name in "and or xor not".split()),
        *(f"{name}.{form}" for name in ("any", "all") for form in ("default", "dim", "dims")),
        *("max.dim", "min.dim", "max_pool2d_with_indices.default"),
        *("floor_divide.Scalar", "div.Tensor_mode", "div.Scalar_mode"),
    )
)
"""Ops whose results jump: indices, masks and whole numbers of a value differ from those of the value once rounded."""
_HALVES = frozenset({torch.float16, torch.bfloat16})
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
            reentrant=True,
            deterministic=True,
            error_budget=ErrorBudget(factor=4.0, floor=64.0),
            fused=_FUSED,
            compiles_behind=frozenset({"cpu"}),
            row_major=True,
            thread_pool="onnxruntime",
        )

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
    if _jumps(view) and any(meta.dtype in _HALVES for meta in view.input_tensors):
        detail = f"the runtime computes halves in float32, and {view.op} may see them before they are rounded"
        return Unsupported("dtype", detail)
    for meta in () if view.op == "getitem" else view.input_tensors:
        if any(size == 0 for size in meta.shape):
            return Unsupported("declined", f"{meta} is empty: there is nothing to compute")
    if any(_holds_symbol(value) for _, value in view.node.arguments):
        return Unsupported("dynamic-shape", "a symbolic size is written into the arguments")
    return None


def _jumps(view: OpView) -> bool:
    """Whether results are indices, masks or whole numbers, which a rounding of inputs changes."""
    if view.op in _STEPS:
        return True
    return view.op == "aten._to_copy.default" and not any(meta.dtype.is_floating_point for meta in view.output_tensors)


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
