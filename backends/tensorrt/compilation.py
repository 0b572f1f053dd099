"""Compile and load: a region becomes an engine.

Place: behind ``TensorRtBackend.compile`` and ``load``; the package ``tensorrt`` is imported below this module alone.
Input: a region, or a region and a stored engine. Output: ``CompiledRegion``.
An engine is built once per region, with weights that are placeholders; binding gives a copy of it the true ones, in
about the time of copying them, and again when they change. Where TensorRT cannot give some weight anew, binding builds
an engine with the values inside, from the timings that were measured before.
Invariants: without binding ``run`` is right, too: it gives the engine its weights at each call.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx
import torch

from mixbackend.backends.tensorrt.api import Api, Settings
from mixbackend.backends.tensorrt.artifact import EngineArtifact
from mixbackend.backends.tensorrt.building import Built, build, placeholder
from mixbackend.backends.tensorrt.limits import limits
from mixbackend.backends.tensorrt.model import Prepared, Weight, prepare
from mixbackend.backends.tensorrt.profiles import Profile, conditions, profiles
from mixbackend.backends.tensorrt.running import Engine, constant_at
from mixbackend.backends.tensorrt.versions import Release
from mixbackend.contracts import BoundRun, CompiledRegion, Region

_LONGEST_TEXT = 200_000


def compile_region(region: Region, release: Release, key: str) -> CompiledRegion:
    """Build a region's engine.

    Args:
        region: all of whose ops are supported.
        release: of TensorRT.
        key: of everything that timings of tactics depend on.

    Raises:
        LoweringError: the region has no ONNX form although its ops were claimed.
        BuildError: TensorRT refused, the process died, or time ran out.
    """
    plan = _plan(region, release, key)
    if plan.prepared.weights and not limits().refit:
        return _compiled(region, plan, EngineArtifact(plan.prepared.digest, plan.sizes, frozenset(), 0.0, b""))
    built = plan.build(placeholder, refit=bool(plan.prepared.weights))
    names = {weight.name for weight in plan.prepared.weights}
    # What was built with placeholders is of no use where it cannot be given all of the true weights.
    engine = built.engine if names <= built.refittable else b""
    artifact = EngineArtifact(plan.prepared.digest, plan.sizes, built.refittable, built.seconds, engine)
    return _compiled(region, plan, artifact)


def load_region(region: Region, release: Release, key: str, stored: bytes) -> CompiledRegion:
    """Take up a stored engine.

    Raises:
        ValueError: the engine is damaged, or one of another region, release or GPU.
    """
    plan, artifact = _plan(region, release, key), EngineArtifact.from_bytes(stored)
    if (artifact.digest, artifact.profiles) != (plan.prepared.digest, plan.sizes):
        raise ValueError("the engine was built for another model or other sizes")
    if artifact.engine:
        plan.open(artifact.engine)
    return _compiled(region, plan, artifact)


@dataclass(frozen=True)
class _Plan:
    """What is needed to build and open a region's engines."""

    prepared: Prepared
    profiles: tuple[Profile, ...]
    tf32: bool
    device: torch.device
    key: str

    @property
    def sizes(self) -> str:
        return json.dumps([profile.shapes for profile in self.profiles])

    def build(self, values: Any, refit: bool) -> Built:
        allowed = limits()
        settings = Settings(allowed.workspace_mb << 20, allowed.level, refit, self.tf32, self.prepared.halves)
        return build(self.prepared, self.profiles, settings, values, self.key)

    def open(self, engine: bytes) -> Engine:
        return Engine(_api(), engine, self.prepared, self.profiles, self.device)


def _plan(region: Region, release: Release, key: str) -> _Plan:
    prepared = prepare(region, release)
    return _Plan(prepared, profiles(prepared.entrances), _may_round(region), _device(region), key)


def _compiled(region: Region, plan: _Plan, artifact: EngineArtifact) -> CompiledRegion:
    binder = _Binder(plan, artifact)
    entrances = plan.prepared.entrances
    has_constants = bool(plan.prepared.weights) or any(item.constant for item in entrances)
    ways = "weights are given anew" if artifact.engine else "built again for changed weights"
    return CompiledRegion(
        run=binder.rebinding if has_constants else plan.open(artifact.engine).run,
        bind=binder.bind if has_constants else None,
        artifact=artifact.to_bytes(),
        source=_readable(plan.prepared.model),
        preconditions=conditions(entrances),
        strides="contiguous",
        notes=(
            *((f"engine built in {artifact.seconds:.0f} s",) if artifact.seconds else ()),
            *((ways,) if plan.prepared.weights else ()),
        ),
    )


class _Binder:
    """Makes engines with weights inside."""

    def __init__(self, plan: _Plan, artifact: EngineArtifact) -> None:
        self._plan = plan
        self._artifact = artifact
        self._lock = threading.Lock()

    def bind(self, constants: Sequence[torch.Tensor | None]) -> BoundRun:
        """See ``BindFunction``."""
        engine = self._engine(constants)
        prepared = self._plan.prepared
        kept = {
            item.place: constant_at(item.place, constants).detach().to(item.dtype)
            for item in prepared.entrances
            if item.constant
        }
        weight_bytes = sum(weight.nbytes for weight in prepared.weights)
        own = sum(value.nbytes for place, value in kept.items() if value.data_ptr() != _address(constants[place]))

        def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
            return engine.run([kept.get(place, value) for place, value in enumerate(inputs)] if kept else inputs)

        notes = (f"{engine.scratch_bytes / 2**20:.0f} MiB of scratch memory",)
        return BoundRun(run, weight_bytes + own + engine.scratch_bytes, notes)

    def rebinding(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """A call without binding."""
        with self._lock:
            return list(self.bind(inputs).run(inputs))

    def _engine(self, constants: Sequence[torch.Tensor | None]) -> Engine:
        plan = self._plan
        if not self._artifact.engine:

            def values(weight: Weight) -> torch.Tensor:
                return weight.of(constant_at(weight.place, constants))

            return plan.open(plan.build(values, refit=False).engine)
        engine = plan.open(self._artifact.engine)
        if plan.prepared.weights:
            engine.refit(constants)
        return engine


def _address(value: torch.Tensor | None) -> int:
    return -1 if value is None else value.data_ptr()


@lru_cache(maxsize=1)
def _api() -> Api:
    import tensorrt

    # What TensorRT says while it runs an engine is told by what it returns.
    return Api(tensorrt, lambda message: None)


def _device(region: Region) -> torch.device:
    return region.outputs[0].meta.device


def _may_round(region: Region) -> bool:
    """Whether float32 products may be computed in TF32: where the user lets torch do so for all that the region has."""
    classes = {view.op_class for view in region.views}
    convolutions = torch.backends.cudnn.allow_tf32 or "convolution" not in classes
    products = torch.get_float32_matmul_precision() != "highest" or not classes & {"matmul", "attention"}
    return bool(convolutions and products)


def _readable(model: bytes) -> str:
    text = onnx.printer.to_text(onnx.load_model_from_string(model))
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[:_LONGEST_TEXT]}\n# {len(text) - _LONGEST_TEXT} more characters\n"
