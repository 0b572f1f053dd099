"""Compile and load: a region becomes an engine.

Place: behind ``TensorRtBackend.compile`` and ``load``.
Input: a region, or a region and a stored engine. Output: ``CompiledRegion``.
Where the release gives weights anew, an engine is built once per region, with weights that are placeholders; binding
gives a copy of it the true ones, in about the time of copying them, and again when they change. Elsewhere, and where
TensorRT cannot give some weight anew, nothing is built before the values are known: binding builds an engine with them
inside, which is stored under their digest.
Invariants: without binding ``run`` is right, too. A stored engine is opened once: what was opened to see whether it is
good serves the first binding.
"""

from __future__ import annotations

import onnx

from mixbackend.backends.tensorrt.artifact import EngineArtifact
from mixbackend.backends.tensorrt.binding import AnyValues, OwnValues
from mixbackend.backends.tensorrt.building import RunBuild, placeholder
from mixbackend.backends.tensorrt.limits import why_weights_inside
from mixbackend.backends.tensorrt.plan import EnginePlan
from mixbackend.backends.tensorrt.profiles import conditions
from mixbackend.backends.tensorrt.running import Engine
from mixbackend.backends.tensorrt.versions import Release
from mixbackend.contracts import CompiledRegion, Region

_LONGEST_TEXT = 200_000


def compile_region(region: Region, release: Release, key: str, run_build: RunBuild | None = None) -> CompiledRegion:
    """Build a region's engine, unless it waits for the values of its weights.

    Args:
        region: of ops that are all supported.
        release: of TensorRT.
        key: of everything that timings of tactics depend on.
        run_build: builds engines; by default in another process.

    Raises:
        LoweringError: the region has no ONNX form although its ops were claimed.
        BuildError: TensorRT refused, the process died, or time ran out.
    """
    plan = EnginePlan.of(region, release, key, run_build)
    weights = plan.prepared.weights
    if weights and why_weights_inside(release):
        artifact = EngineArtifact(plan.prepared.digest, plan.sizes, frozenset(), 0.0, b"")
        return _compiled(plan, release, artifact)
    built = plan.build(placeholder, refit=bool(weights))
    # What was built with placeholders is of no use where it cannot be given all of the true weights.
    engine = built.engine if {weight.name for weight in weights} <= built.refittable else b""
    artifact = EngineArtifact(plan.prepared.digest, plan.sizes, built.refittable, built.seconds, engine)
    return _compiled(plan, release, artifact)


def load_region(
    region: Region, release: Release, key: str, stored: bytes, run_build: RunBuild | None = None
) -> CompiledRegion:
    """Take up a stored engine; for other arguments see ``compile_region``.

    Raises:
        ValueError: the engine is damaged, or one of another region, release or GPU.
    """
    plan, artifact = EnginePlan.of(region, release, key, run_build), EngineArtifact.from_bytes(stored)
    artifact.check(plan.prepared.digest, plan.sizes)
    return _compiled(plan, release, artifact, plan.open(artifact.engine) if artifact.engine else None)


def _compiled(
    plan: EnginePlan, release: Release, artifact: EngineArtifact, opened: Engine | None = None
) -> CompiledRegion:
    entrances, weights = plan.prepared.entrances, plan.prepared.weights
    source, limits = _readable(plan.prepared.model), conditions(entrances)
    stored = artifact.to_bytes()
    if not artifact.engine:
        why = why_weights_inside(release) or "TensorRT cannot give it all of them anew"
        own = OwnValues(plan)
        return CompiledRegion(
            run=own.unbound,
            bind=own.bind,
            prepare_binding=own.prepare,
            artifact=stored,
            source=source,
            preconditions=limits,
            strides="contiguous",
            notes=(f"weights inside, an engine for each of their values: {why}",),
        )
    values = AnyValues(plan, artifact.engine, opened)
    has_constants = bool(weights) or any(item.constant for item in entrances)
    return CompiledRegion(
        run=values.unbound if has_constants else values.engine().run,
        bind=values.bind if has_constants else None,
        artifact=stored,
        source=source,
        preconditions=limits,
        strides="contiguous",
        notes=(artifact.note, *(("weights are given anew",) if weights else ())),
    )


def _readable(model: bytes) -> str:
    text = onnx.printer.to_text(onnx.load_model_from_string(model))
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[:_LONGEST_TEXT]}\n# {len(text) - _LONGEST_TEXT} more characters\n"
