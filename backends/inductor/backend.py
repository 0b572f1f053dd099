"""Inductor as a backend: torch's own compiler, region by region.

Place: registered under the entry point group ``mixbackend.backends``.
Input: regions of every phase, static or dynamic. Output: compiled regions with live weights.
A region is re-traced with inductor's decompositions under symbols of its own, passes inductor's joint-graph passes and
is then compiled as torch compiles a forward, backward or inference graph. What inductor assumes about sizes on the way
becomes preconditions of the region, never a guard of the captured graph.
On a GPU its kernels are waited for when the region first runs: the next region is written meanwhile.
What is stored of a region without symbolic sizes is where inductor's own cache has it: the next process neither
re-traces it nor computes inductor's key.
Non-goals: freezing, CUDA graphs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from mixbackend.backends.common.compiler import NoCompilerError, find_compiler
from mixbackend.backends.common.retrace import Retraced, retrace_apart
from mixbackend.backends.common.side_by_side import works_behind
from mixbackend.backends.common.writing import refuse_writes
from mixbackend.backends.inductor.handling import handling_of
from mixbackend.backends.inductor.rates import FUSED, SHARED_ROWS, inductor_rates
from mixbackend.backends.inductor.reference import Reference, Strides
from mixbackend.backends.inductor.refusals import WHOLE, refusal
from mixbackend.contracts import (
    WRITING,
    Availability,
    Backend,
    BackendRates,
    BuildSeconds,
    CompiledRegion,
    DeviceModel,
    ErrorBudget,
    OpTag,
    OpView,
    Region,
    RegionConditions,
    RegionOutput,
    RegionSketch,
    Supported,
    SymbolicSize,
    TensorMeta,
    Traits,
    Unsupported,
    Verdict,
    refuse_special,
)
from mixbackend.contracts.gpu import gpu_fingerprint
from mixbackend.contracts.graph import accelerator
from mixbackend.contracts.torch_compat import (
    LateKernels,
    fresh_fake_mode,
    inductor_compile,
    inductor_entry,
    inductor_load,
    inductor_measures,
    inductor_settings,
    inductor_source,
    inductor_surroundings,
    kernels_later,
    tracing_apart,
)


class InductorBackend(Backend):
    """Torch's inductor.

    Args:
        device_types: where regions may lie; by default where inductor has what it needs.
    """

    name: ClassVar[str] = "inductor"
    contract_version: ClassVar[str] = "1.0"

    def __init__(self, device_types: frozenset[str] | None = None) -> None:
        self._given_types = device_types

    @property
    def device_types(self) -> frozenset[str]:
        """Where regions may lie; what is here is looked up when it is first asked for."""
        return _usable_device_types() if self._given_types is None else self._given_types

    def availability(self) -> Availability:
        """It needs a C++ compiler and Python's headers, which its kernels are built with."""
        if _compiler() is None:
            return Availability(False, _why_no_compiler())
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            return Availability(False, "Python.h is missing; install the headers of this Python (python3-dev)")
        return Availability(True, version=torch.__version__)

    def fingerprint(self) -> str:
        """Torch, its inductor settings, the compiler and the vector instructions it compiles for."""
        gpu = gpu_fingerprint() if "cuda" in self.device_types else "none"
        return f"{_fingerprint(hashlib.sha256(inductor_settings().encode()).hexdigest()[:16])} gpu={gpu}"

    def traits(self) -> Traits:
        """Live weights; regions are re-traced with inductor's own decompositions."""
        return Traits(
            device_types=self.device_types,
            decomposition="inductor",
            capturable=True,
            writes_inputs=True,
            takes_whole=WHOLE,
            compiles_graphs=True,
            mixes_devices=True,
            exact_input_strides=True,
            fixed_outputs=True,
            error_budget=ErrorBudget(factor=4.0, floor=64.0),
            fused=FUSED,
            shared_rows=SHARED_ROWS,
            compiles_behind=frozenset() if inductor_measures() else self.device_types,
            pads_products=True,
        )

    def judge(self, view: OpView) -> Verdict:
        """It takes what it lowers, decomposes or knows how to hand to eager, on strided tensors of ordinary dtypes."""
        special = refuse_special(view, writes_inputs=True, takes_whole=WHOLE)
        if special is not None:
            return special
        if OpTag.STRIDE_SENSITIVE in view.node.tags:
            return Unsupported("layout", f"{view.op} reads memory by position, and decompositions change layouts")
        return refusal(view, self.device_types) or (
            Supported() if view.op in WRITING or view.op in WHOLE else _handling(view.op)
        )

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        """Writes that cannot be put off until everything is computed."""
        return refuse_writes(sketch.views)

    def conditions(self) -> RegionConditions:
        """A lone op has nothing to fuse with and would cost a C++ compilation."""
        return RegionConditions(minimum_ops=2)

    def build_seconds(self, device_type: str) -> BuildSeconds:
        """Lowering in Python, then a C++ or Triton compiler for each kernel."""
        return BuildSeconds(region_s=2.0, op_s=0.02)

    def prior(self, device: DeviceModel) -> BackendRates | None:
        """Shares eager's matrix products; everything between them is fused."""
        return inductor_rates(device)

    def compile(self, region: Region) -> CompiledRegion:
        """Re-trace and compile one region."""
        traced, exact = retrace_apart(region, "inductor"), _exact_outputs(region)
        strides: Strides = "as_traced" if _keeps_strides(region.outputs, traced) else "unknown"
        with tracing_apart(traced.fake_mode), _late_kernels(region) as late:
            surroundings = None if traced.originals else inductor_surroundings(traced.fake_mode, exact)
            static = _static_places(region, len(traced.originals))
            compiled = inductor_compile(
                traced.graph_module, traced.inputs, traced.fake_mode, exact, region.phase, static
            )
        return CompiledRegion(
            run=_runner(compiled, late, traced.arguments),
            artifact=_artifact(inductor_entry(compiled), surroundings, strides),
            source=inductor_source(compiled),
            preconditions=traced.preconditions(),
            strides=strides,
        )

    def load(self, region: Region, artifact: bytes) -> CompiledRegion:
        """A region as inductor's own cache has it.

        Raises:
            ValueError: no reference, or inductor would make something else of the region now.
            FileNotFoundError: inductor's cache has it no more, or never had: it is written when a region first runs.
        """
        reference, fake_mode, exact = Reference.read(artifact), fresh_fake_mode(), _exact_outputs(region)
        with tracing_apart(fake_mode), _late_kernels(region) as late:
            if inductor_surroundings(fake_mode, exact) != reference.surroundings:
                raise ValueError("inductor's settings are others, or torch's")
            compiled = inductor_load(reference.entry, fake_mode, exact, region.phase)
        return CompiledRegion(run=_runner(compiled, late), source=inductor_source(compiled), strides=reference.strides)


def _exact_outputs(region: Region) -> list[int]:
    """Places of the outputs with promised strides."""
    return [index for index, output in enumerate(region.outputs) if output.exact_stride]


def _artifact(entry: str | None, surroundings: str | None, strides: Strides) -> bytes | None:
    if entry is None or surroundings is None:
        return None
    return Reference(entry=entry, surroundings=surroundings, strides=strides).written()


def _static_places(region: Region, symbols: int) -> tuple[int, ...]:
    """Places of the weights on a GPU, behind the symbols: inductor does not look at each call whether their memory is
    aligned."""
    return tuple(
        symbols + place
        for place, item in enumerate(region.inputs)
        if item.role.is_weight and isinstance(item.meta, TensorMeta) and item.meta.device.type == "cuda"
    )


def _late_kernels(region: Region) -> contextlib.AbstractContextManager[LateKernels | None]:
    """On a GPU the next region is written while kernels of this one are compiled; on the processor, compilations would
    disturb timings there. Behind the user's process nothing runs that could be waited for."""
    metas = [item.meta for item in region.inputs] + [item.meta for item in region.outputs]
    late = accelerator(metas) == "cuda" and not works_behind()
    return kernels_later() if late else contextlib.nullcontext()


def _runner(compiled: Any, late: LateKernels | None, arguments: Callable[[Sequence[Any]], list[Any]] = list) -> Any:
    def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        nonlocal late
        kernels = late
        if kernels is not None:
            kernels.finish()
            late = None
        # Inductor empties the list it is given.
        return compiled(arguments(inputs))

    return run


def _keeps_strides(outputs: Sequence[RegionOutput], traced: Retraced) -> bool:
    """Whether every output will have the strides it had when it was captured."""
    return all(
        output.exact_stride and _same_strides(output.meta, strides)
        for output, strides in zip(outputs, traced.output_strides(), strict=True)
    )


def _same_strides(meta: TensorMeta, strides: Sequence[Any]) -> bool:
    return all(
        size == 1 or _expression(expected) == actual
        for size, expected, actual in zip(meta.shape, meta.stride, strides, strict=True)
    )


def _expression(size: Any) -> Any:
    return size.expression if isinstance(size, SymbolicSize) else size


@functools.cache
def _handling(op: str) -> Verdict:
    """Verdict on an operator by what inductor has for it."""
    if op == "getitem":
        return Supported()
    handling = handling_of(op)
    if handling is None:
        return Unsupported("unknown-op", f"{op} is not an operator of torch")
    if handling == "none":
        return Unsupported("declined", f"inductor neither lowers nor decomposes {op}; it would only call eager")
    return Supported()


def _wanted_compiler() -> str:
    return os.environ.get("CXX") or ("clang++" if platform.system() == "Darwin" else "g++")


@functools.lru_cache(maxsize=1)
def _compiler() -> str | None:
    """Path of the C++ compiler that inductor will call."""
    return shutil.which(_wanted_compiler())


def _why_no_compiler() -> str:
    """What is lacking, in the words of other backends that need a compiler."""
    try:
        other = find_compiler().command[0]
    except NoCompilerError as error:
        return str(error)
    return f"torch takes {_wanted_compiler()} alone, which is not on the path; set CXX={other}"


@functools.lru_cache(maxsize=1)
def _usable_device_types() -> frozenset[str]:
    """The CPU; CUDA too where there is a GPU and Triton to write its kernels with."""
    has_gpu = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
    return frozenset({"cpu", "cuda"} if has_gpu else {"cpu"})


@functools.lru_cache(maxsize=4)
def _fingerprint(settings: str) -> str:
    compiler = _compiler() or "none"
    version = "unknown"
    if compiler != "none":
        answer = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=20)
        version = answer.stdout.splitlines()[0] if answer.stdout else "unknown"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch={torch.__version__} settings={settings} compiler={version} cpu={capability}"
