"""The code generator as a backend: what no library has a kernel for, fused and compiled here.

Place: registered under the entry point group ``mixbackend.backends``; the fallback of first resort.
Input: regions of every phase, static or dynamic. Output: compiled regions with live weights and traced strides.
Steps: ``lower`` (ATen to stages), ``schedule`` (stages to kernels), a target (kernels to machine code), ``runner``.
What they made is kept as an ``artifact``, and runs again without them.
Non-goals: products of matrices, all but depthwise convolutions, sorting, random numbers: libraries and eager own those.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import sympy

from mixbackend.backends.codegen.artifact import RegionArtifact
from mixbackend.backends.codegen.rates import FUSED, codegen_rates
from mixbackend.backends.codegen.runner import PreparedRunner, make_runner
from mixbackend.backends.codegen.targets.target import CompiledProgram, Target
from mixbackend.contracts import (
    Availability,
    Backend,
    BackendRates,
    CompiledRegion,
    DeviceModel,
    ErrorBudget,
    InputRole,
    OpTag,
    OpView,
    Pattern,
    Region,
    RegionSketch,
    Supported,
    SymbolicSize,
    TensorMeta,
    Traits,
    Unsupported,
    Verdict,
    refuse_special,
)

if TYPE_CHECKING:
    from mixbackend.backends.codegen.ir.program import Program

_FREE = frozenset({"view", "factory"})


class CodegenBackend(Backend):
    """Regions compiled by our own code generator.

    Args:
        target: what turns kernels into code; C++ with OpenMP unless given.
    """

    name: ClassVar[str] = "codegen"
    contract_version: ClassVar[str] = "1.0"

    def __init__(self, target: Target | None = None) -> None:
        self._given = target

    @cached_property
    def target(self) -> Target:
        """What turns kernels into code."""
        if self._given is not None:
            return self._given
        from mixbackend.backends.codegen.targets.cpp.target import CppTarget

        return CppTarget()

    def availability(self) -> Availability:
        """As its target is."""
        return self.target.availability()

    def fingerprint(self) -> str:
        """The target's, the version of what is above it, and what the scheduler knows of the machine."""
        traits = self.target.traits()
        return (
            f"lowering={_generator_digest()[:16]} width={traits.parallel_width} scratch={traits.scratch_bytes} "
            f"{self.target.name}: {self.target.fingerprint()}"
        )

    def traits(self) -> Traits:
        """Weights are laid out anew when bound, and taken as they are else; all values but results stay inside."""
        return Traits(
            device_types=frozenset({self.target.traits().device_type}),
            weights="refit",
            exact_input_strides=True,
            error_budget=ErrorBudget(factor=4.0, floor=64.0),
            fused=FUSED,
            writes_inputs=True,
            concurrent_compile=True,
        )

    def judge(self, view: OpView) -> Verdict:
        """It takes what a lowering rule covers, on the target's device and types."""
        from mixbackend.backends.codegen.lower.judging import judge_op

        special = refuse_special(view, writes_inputs=True) or self._refuse_values(view)
        if special is not None:
            return special
        # Parts of a result stay with the op that made it; its verdict is theirs.
        return Supported() if view.op == "getitem" else judge_op(view, self.target.traits().templates)

    def patterns(self) -> tuple[Pattern, ...]:
        """Attention that is written out, where the target has it as a whole."""
        from mixbackend.backends.codegen.ir.templates import ATTENTION
        from mixbackend.backends.codegen.patterns import PATTERNS

        return PATTERNS if ATTENTION in self.target.traits().templates else ()

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        """Views and constants alone are quicker in eager, which copies nothing; some writes only eager can order."""
        from mixbackend.backends.codegen.lower.writing import refuse_writes

        refusal = refuse_writes(sketch.views)
        if refusal is not None:
            return refusal
        if any(view.op_class not in _FREE and view.op != "getitem" for view in sketch.views):
            return None
        return Unsupported("region-too-small", "nothing but views and constants")

    def prior(self, device: DeviceModel) -> BackendRates | None:
        """Memory traffic at full bandwidth, arithmetic at a good share of the peak."""
        return codegen_rates(self.name, device)

    def compile(self, region: Region) -> CompiledRegion:
        """Lower, schedule, compile; what kernels make of constants alone is made when the region is bound."""
        from mixbackend.backends.codegen.prepared import prepare

        program = self.program(region)
        notes = (f"{len(program.calls)} kernels, {len(program.refusals)} refused fusions",)
        parts = prepare(program, _constants(region))
        if parts is None:
            content, compiled = self._compiled(program)
            return replace(self._region(region, content, compiled), notes=notes)
        bound = {*_constant_places(region), *range(len(program.inputs), len(parts.rest.inputs))}
        first, compiled_first = self._compiled(parts.first)
        content, compiled = self._compiled(parts.rest, bound)
        content = replace(content, preparation=first, places=parts.places)
        return replace(self._region(region, content, compiled, compiled_first), notes=notes)

    def load(self, region: Region, artifact: bytes) -> CompiledRegion:
        """Everything comes from the artifact: nothing is lowered or scheduled."""
        content = RegionArtifact.from_bytes(artifact)
        first = content.preparation
        compiled_first = None if first is None else self.target.load(first.calls, first.compiled)
        return self._region(region, content, self.target.load(content.calls, content.compiled), compiled_first)

    def _compiled(self, program: Program, given: Collection[int] = ()) -> tuple[RegionArtifact, CompiledProgram]:
        """A program as it is kept, and what the target made of it."""
        from mixbackend.backends.codegen.runner_text import runner_text

        device = self.target.traits().device_type
        compiled = self.target.compile(program)
        bound = runner_text(program, device, given) if given else ""
        text = runner_text(program, device)
        return RegionArtifact(text, program.call_table, compiled.artifact or b"", bound=bound), compiled

    def _region(
        self,
        region: Region,
        content: RegionArtifact,
        compiled: CompiledProgram,
        first: CompiledProgram | None = None,
    ) -> CompiledRegion:
        """What runs a region, from compiled programs."""
        device = self.target.traits().device_type
        artifact = None if compiled.artifact is None else content.to_bytes()
        run = make_runner(content.runner, compiled.launch, device)
        if first is None or content.preparation is None:
            return CompiledRegion(run, artifact=artifact, source=compiled.source, strides="as_traced")
        before = make_runner(content.preparation.runner, first.launch, device)
        made = PreparedRunner(before, content.places, run, content.bound, compiled.launch, device)
        source = f"{first.source}\n{compiled.source}"
        return CompiledRegion(made.run, made.bind, artifact, source, strides="as_traced")

    def program(self, region: Region) -> Program:
        """The kernels of a region, before a target sees them."""
        from mixbackend.backends.codegen.lower.table import lower_region
        from mixbackend.backends.codegen.schedule.schedule import schedule

        return schedule(lower_region(region), self.target.traits(), _hints(region), _fuel())

    def _refuse_values(self, view: OpView) -> Unsupported | None:
        if OpTag.STRIDE_SENSITIVE in view.node.tags:
            return Unsupported("layout", f"{view.op} reads memory by position")
        traits = self.target.traits()
        for meta in (*view.input_tensors, *view.output_tensors):
            if meta.device.type != traits.device_type:
                return Unsupported("device", f"{meta} is not on {traits.device_type}")
            if meta.dtype not in traits.dtypes:
                return Unsupported("dtype", f"{meta.dtype} in {view.op}")
        return None


@lru_cache(maxsize=1)
def _generator_digest() -> str:
    """Hash of everything above the target that decides what is generated: no change of it can meet old artifacts."""
    home = Path(__file__).parent
    files = [*home.glob("*.py"), *(path for part in ("ir", "lower", "schedule") for path in (home / part).glob("*.py"))]
    texts = [str(path.relative_to(home)).encode() + b"\0" + path.read_bytes() for path in sorted(files)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def _constant_places(region: Region) -> tuple[int, ...]:
    return tuple(place for place, item in enumerate(region.inputs) if item.role is InputRole.CONSTANT)


def _constants(region: Region) -> frozenset[str]:
    """Names of the inputs whose values are known when the region is bound."""
    return frozenset(region.inputs[place].name for place in _constant_places(region))


def _hints(region: Region) -> dict[sympy.Symbol, int]:
    """Captured values of the sizes that are symbols."""
    metas = [item.meta for item in region.inputs]
    sizes = [size for meta in metas if isinstance(meta, TensorMeta) for size in (*meta.shape, *meta.stride)]
    sizes += [meta for meta in metas if isinstance(meta, SymbolicSize)]
    return {
        size.expression: size.hint
        for size in sizes
        if isinstance(size, SymbolicSize) and size.expression.is_Symbol and size.hint is not None
    }


def _fuel() -> int | None:
    """Fusions allowed per region, from ``MIXBACKEND_FUSION_FUEL``."""
    value = os.environ.get("MIXBACKEND_FUSION_FUEL", "")
    return int(value) if value.isdigit() else None
