"""The code generator as a backend: what no library has a kernel for, fused and compiled here.

Place: registered under the entry point group ``mixbackend.backends``; the fallback of first resort.
Input: regions of every phase, static or dynamic. Output: compiled regions with live weights and traced strides.
Steps: ``lower`` (ATen to stages), ``schedule`` (stages to kernels), a target (kernels to machine code), ``runner``.
What they made is kept as an ``artifact``, and runs again without them.
Products of matrices on processors are those of float32 with a matrix that is known when a region is bound, and is
packed then; so are convolutions. A quantised weight is packed as it is stored. Non-goals: on GPUs, convolutions but
depthwise ones and those of one point; sorting; other products on processors: libraries and eager own those.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import sympy
import torch

from mixbackend.backends.codegen.artifact import FORMAT, RegionArtifact
from mixbackend.backends.codegen.rates import FUSED, ONLY_FUSED_ON_PROCESSOR, codegen_rates
from mixbackend.backends.codegen.runner import PreparedRunner, make_runner
from mixbackend.backends.codegen.targets.target import CompiledProgram, Target
from mixbackend.contracts import (
    Availability,
    Backend,
    BackendRates,
    BuildSeconds,
    CompiledRegion,
    DeviceModel,
    ErrorBudget,
    InputRole,
    OpClass,
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
from mixbackend.contracts.rate_rows import CONSTANT, GROUPED, ONE_ROW, rate_row

if TYPE_CHECKING:
    from mixbackend.backends.codegen.ir.program import Program

_FREE = frozenset({"view", "factory"})
_PRODUCT_DTYPES = frozenset({torch.float32})
_ONE_ROW_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Where products are packed. One row waits for its weight; more rows of 16-bit floats have units of their own."""

_FUSED_DRAWS: frozenset[tuple[OpClass, OpClass]] = frozenset(
    pair
    for neighbour in ("pointwise", "reduction", "normalization", "softmax", "view", "copy", "random")
    for pair in (("random", neighbour), (neighbour, "random"))
)
"""Random numbers are computed where they are read."""


class CodegenBackend(Backend):
    """Regions compiled by our own code generator.

    Args:
        target: what turns kernels into code. Unless given, there is one for each kind of device: C++ with OpenMP for
            processors, Triton for GPUs.
        measuring: whether blocks of threads are chosen by measuring them, where they were not measured before.
    """

    name: ClassVar[str] = "codegen"
    contract_version: ClassVar[str] = "1.0"

    def __init__(self, target: Target | None = None, measuring: bool = False) -> None:
        self._given = target
        self._measuring = measuring

    @cached_property
    def targets(self) -> Mapping[str, Target]:
        """The targets that can be used here, by the device that they are for."""
        usable = [target for target in self._candidates if target.availability().available]
        return {target.traits().device_type: target for target in usable or self._candidates[:1]}

    @property
    def target(self) -> Target:
        """The first of the targets."""
        return next(iter(self.targets.values()))

    @cached_property
    def _candidates(self) -> tuple[Target, ...]:
        if self._given is not None:
            return (self._given,)
        from mixbackend.backends.codegen.targets.cpp.target import CppTarget
        from mixbackend.backends.codegen.targets.triton.availability import triton_availability

        if not triton_availability().available:
            return (CppTarget(),)
        from mixbackend.backends.codegen.targets.triton.target import TritonTarget

        return (CppTarget(), TritonTarget(measuring=self._measuring))

    def availability(self) -> Availability:
        """As its targets are: one is enough. GPUs are spoken of where there are any."""
        answers = [target.availability() for target in self._candidates]
        versions = [answer.version for answer in answers if answer.available]
        if versions:
            return Availability(True, version=", ".join(filter(None, versions)))
        if self._given is None and torch.cuda.is_available():
            from mixbackend.backends.codegen.targets.triton.availability import triton_availability

            answers.append(triton_availability())
        return Availability(
            False, reason="; ".join(dict.fromkeys(answer.reason for answer in answers if answer.reason))
        )

    def for_measuring(self) -> Backend:
        """On GPUs the same with measured blocks; elsewhere there is nothing to measure."""
        return CodegenBackend(measuring=True) if self._given is None and "cuda" in self.targets else self

    def fingerprint(self) -> str:
        """The targets', the version of what is above them, and what the scheduler knows of the machine."""
        # In which order torch packs codes of 4 bits depends on its kernels, ``lower.int4_products``.
        parts = [f"lowering={_generator_digest()[:16]} kernels={torch.backends.cpu.get_cpu_capability()}"]
        for target in self.targets.values():
            traits = target.traits()
            parts.append(f"width={traits.parallel_width} scratch={traits.scratch_bytes}")
            parts.append(f"{target.name}: {target.fingerprint()}")
        return " ".join(parts)

    def traits(self) -> Traits:
        """Weights are laid out anew when bound, and taken as they are else; all values but results stay inside."""
        return Traits(
            device_types=frozenset(self.targets),
            weights="refit",
            capturable="cuda" in self.targets,
            exact_input_strides=True,
            error_budget=ErrorBudget(factor=4.0, floor=64.0),
            fused=FUSED | _FUSED_DRAWS,
            only_fused_on_processor=ONLY_FUSED_ON_PROCESSOR,
            keeps_random_stream=any(target.traits().drawing_threads is not None for target in self.targets.values()),
            writes_inputs=True,
            raises_before_writing=True,
            fixed_outputs=True,
            concurrent_compile=True,
            # Where plans of kernels are measured, compiling runs them.
            compiles_behind=frozenset(self.targets) - ({"cuda"} if self._measuring else set()),
            gathers="cuda" in self.targets,
            packaged="native",
        )

    def loading(self, device_type: str) -> str:
        """The form of artifacts, the kernels of torch that code relies on for packing, and what the target says."""
        return f"{FORMAT} kernels={torch.backends.cpu.get_cpu_capability()} {self.targets[device_type].loading()}"

    def kit(self, device_type: str) -> bytes | None:
        """The target's."""
        return self.targets[device_type].kit() if device_type in self.targets else None

    def with_kit(self, kit: bytes) -> Backend:
        """With the C++ target of another machine; those for GPUs make no kits."""
        from mixbackend.backends.codegen.targets.cpp.target import CppTarget

        return CodegenBackend(CppTarget().with_kit(kit))

    def judge(self, view: OpView) -> Verdict:
        """It takes what a lowering rule covers, on a target's device and types."""
        from mixbackend.backends.codegen.lower.judging import judge_op
        from mixbackend.backends.codegen.schedule.checks import unchecked

        special = self._refuse_special(view) or self._refuse_values(view) or self._refuse_product(view)
        if special is not None:
            return special
        # Parts of a result stay with the op that made it; its verdict is theirs.
        if view.op == "getitem":
            return Supported()
        target = self.targets[_device_of((*view.input_tensors, *view.output_tensors), self.target)]
        traits = target.traits()
        objection = target.objection if traits.tells else lambda stage: target.objection(unchecked(stage))
        return judge_op(view, traits.templates, objection, traits.drawing_threads, traits.blocks is None)

    def patterns(self) -> tuple[Pattern, ...]:
        """Attention that is written out, and products with quantised weights, where a target has them as a whole."""
        from mixbackend.backends.codegen.ir.templates import ATTENTION, PRODUCT
        from mixbackend.backends.codegen.patterns import attention_patterns
        from mixbackend.backends.codegen.product_patterns import product_patterns

        attending, multiplying = self._having(ATTENTION), self._having(PRODUCT)
        attention = attention_patterns(attending) if attending else ()
        return (*attention, *product_patterns(multiplying)) if multiplying else attention

    def _having(self, template: str) -> frozenset[str]:
        """Devices with a target that has a template."""
        return frozenset(device for device, target in self.targets.items() if template in target.traits().templates)

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        """Views and constants alone are quicker in eager, which copies nothing; some writes only eager can order."""
        from mixbackend.backends.common.writing import refuse_writes

        refusal = refuse_writes(sketch.views)
        if refusal is not None:
            return refusal
        if any(view.op_class not in _FREE and view.op != "getitem" for view in sketch.views):
            return None
        return Unsupported("region-too-small", "nothing but views and constants")

    def build_seconds(self, device_type: str) -> BuildSeconds:
        """Scheduling, and a C++ or Triton compiler for each kernel."""
        return BuildSeconds(region_s=0.5, op_s=0.01)

    def prior(self, device: DeviceModel) -> BackendRates | None:
        """Memory traffic at full bandwidth, arithmetic at a good share of the peak."""
        return codegen_rates(self.name, device)

    def compile(self, region: Region) -> CompiledRegion:
        """Lower, schedule, compile; what kernels make of constants alone is made when the region is bound."""
        from mixbackend.backends.codegen.prepared import prepare

        program = self.program(region)
        target = self._target_of(region)
        notes = (f"{len(program.launches)} kernels, {len(program.refusals)} refused fusions",)
        parts = prepare(program, _constants(region))
        if parts is None:
            compiled = target.compile(program)
            content = _kept(target, program, compiled)
            return replace(self._region(region, content, compiled), notes=notes)
        bound = {*_constant_places(region), *range(len(program.inputs), len(parts.rest.inputs))}
        compiled_first, compiled = target.compile_all([parts.first, parts.rest])
        first = _kept(target, parts.first, compiled_first)
        content = replace(_kept(target, parts.rest, compiled, bound), preparation=first, places=parts.places)
        return replace(self._region(region, content, compiled, compiled_first), notes=notes)

    def load(self, region: Region, artifact: bytes) -> CompiledRegion:
        """Everything comes from the artifact: nothing is lowered or scheduled."""
        content = RegionArtifact.from_bytes(artifact)
        first, target = content.preparation, self._target_of(region)
        compiled_first = None if first is None else target.load(first.calls, first.compiled)
        return self._region(region, content, target.load(content.calls, content.compiled), compiled_first)

    def _region(
        self,
        region: Region,
        content: RegionArtifact,
        compiled: CompiledProgram,
        first: CompiledProgram | None = None,
    ) -> CompiledRegion:
        """What runs a region, from compiled programs."""
        device = self._target_of(region).traits().device_type
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

        traits = self._target_of(region).traits()
        return schedule(lower_region(region, traits.drawing_threads), traits, _hints(region), _fuel())

    def _target_of(self, region: Region) -> Target:
        """What generates for the device of a region's tensors.

        Raises:
            ValueError: they are on several: a kernel of one would be given addresses of another.
        """
        values = [*(item.meta for item in region.inputs), *(item.meta for item in region.outputs)]
        metas = [meta for meta in values if isinstance(meta, TensorMeta)]
        devices = sorted({meta.device.type for meta in metas})
        if len(devices) > 1:
            raise ValueError(f"the region {region.id} has tensors on {' and on '.join(devices)}")
        return self.targets[_device_of(metas, self.target)]

    def _refuse_special(self, view: OpView) -> Unsupported | None:
        """Of ops that draw random numbers, rules say which of them they draw as eager does."""
        if OpTag.RANDOM in view.node.tags and self.traits().keeps_random_stream:
            calm = replace(view.node, tags=view.node.tags - {OpTag.RANDOM})
            return refuse_special(replace(view, node=calm), writes_inputs=True)
        return refuse_special(view, writes_inputs=True)

    def _refuse_product(self, view: OpView) -> Unsupported | None:
        """Where products are packed, that pays once for all calls, or not at all."""
        from mixbackend.backends.codegen.ir.templates import PRODUCT

        target = self.targets[_device_of((*view.input_tensors, *view.output_tensors), self.target)]
        if PRODUCT not in target.traits().templates or not _is_product(view):
            return None
        qualifiers = rate_row(view).split("/")
        dtypes = _ONE_ROW_DTYPES if ONE_ROW in qualifiers else _PRODUCT_DTYPES
        for meta in (*view.input_tensors, *view.output_tensors):
            if meta.dtype not in dtypes:
                return Unsupported("dtype", f"a product of matrices of {meta.dtype}")
        if CONSTANT not in qualifiers:
            return Unsupported("declined", "the second matrix, or the weight, would be packed anew at each call")
        return None

    def _refuse_values(self, view: OpView) -> Unsupported | None:
        if OpTag.STRIDE_SENSITIVE in view.node.tags:
            return Unsupported("layout", f"{view.op} reads memory by position")
        metas = (*view.input_tensors, *view.output_tensors)
        device = _device_of(metas, self.target)
        if device not in self.targets:
            return Unsupported("device", f"{metas[0]} is not on {' or '.join(self.targets)}")
        dtypes = self.targets[device].traits().dtypes
        for meta in metas:
            if meta.device.type != device:
                return Unsupported("device", f"{meta} is not on {device} as others are")
            if meta.dtype not in dtypes:
                return Unsupported("dtype", f"{meta.dtype} in {view.op}")
        return None


def _is_product(view: OpView) -> bool:
    """Whether an op multiplies matrices, as convolutions do that are not depthwise."""
    return view.op_class == "matmul" or (view.op_class == "convolution" and GROUPED not in rate_row(view).split("/"))


def _device_of(metas: Sequence[TensorMeta], target: Target) -> str:
    """Kind of device of the first of these tensors; the target's where there is none."""
    return metas[0].device.type if metas else target.traits().device_type


def _kept(target: Target, program: Program, compiled: CompiledProgram, given: Collection[int] = ()) -> RegionArtifact:
    """A program as it is kept, with what the target made of it."""
    from mixbackend.backends.codegen.runner_text import runner_text

    device = target.traits().device_type
    bound = runner_text(program, device, given) if given else ""
    text = runner_text(program, device)
    return RegionArtifact(text, program.call_table, compiled.artifact or b"", bound=bound)


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
    """Names of the inputs with values that are known when the region is bound."""
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
