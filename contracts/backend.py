"""The contract: what a backend states, and what it does.

Place: implemented by every backend, ours and vendors' alike; the planner knows nothing else about them.
To add a backend, subclass ``Backend``, fill in the five abstract members, and register it (entry point group
``mixbackend.backends`` or ``mixbackend.register_backend``). Everything else has a default that is safe.
Invariants: ``judge`` and everything the planner asks must be pure and quick (microseconds); only ``compile`` and
``load`` may be slow. A backend instance may be asked from several threads.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

from mixbackend.contracts.build_seconds import BuildSeconds
from mixbackend.contracts.cost import BackendRates, DeviceModel
from mixbackend.contracts.errors import ContractError
from mixbackend.contracts.forms import misfit
from mixbackend.contracts.op_levels import OpLevel
from mixbackend.contracts.opclass import OpClass
from mixbackend.contracts.ops import OpView
from mixbackend.contracts.patterns import Pattern
from mixbackend.contracts.probe import Probe
from mixbackend.contracts.probes import standard_probes
from mixbackend.contracts.region import CompiledRegion, Region, RegionConditions, RegionSketch
from mixbackend.contracts.verdict import Supported, Unsupported, Verdict
from mixbackend.contracts.version import CONTRACT_VERSION

WeightPolicy = Literal["live", "refit", "baked"]
"""What a backend makes of constant inputs: nothing, they are inputs of every call (``live``); code bound to their
values in about the time of copying them (``refit``); code bound to their values by compiling again (``baked``). The
last two return ``CompiledRegion.bind`` for regions with constant inputs."""

Packaged = Literal["no", "data", "native"]
"""What a package (``mixbackend.export``) holds of a region: nothing, since no other process can run what was compiled
here; what the backend's library reads, or nothing where compiling takes no compiler; native code."""

DecompositionLevel = Literal["none", "core_aten", "prims", "inductor"]
"""How far a backend takes ops apart by itself, inside ``compile``: not at all, to core ATen, to prims, or with
inductor's own table. ``Traits.level`` is what it is asked at, and what its regions come in."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can be used on this machine.

    Attributes:
        available: yes or no.
        reason: if not, why, and what to install or change.
        version: of the library behind the backend, if known.
    """

    available: bool
    reason: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """How far from eager a region's results may be.

    A result passes if its distance from a float64 reference is at most ``factor`` times eager's own distance, plus
    ``floor`` units in the last place of the dtype, relative to the largest magnitude of the reference.

    Attributes:
        factor: over eager's error; 1.0 means as good as eager.
        floor: in units of the dtype's epsilon; covers results where eager happens to be exact.
    """

    factor: float = 3.0
    floor: float = 32.0


@dataclass(frozen=True, slots=True)
class Traits:
    """What a backend declares about all its regions.

    Attributes:
        device_types: types of devices that it takes tensors of.
        weights: see ``WeightPolicy``.
        level: of the operators that it speaks, see ``contracts.op_levels``. Below ``aten`` it is asked about the ops
            that an op becomes there, takes the op where it takes them all, and gets regions of such ops; patterns,
            prices and conditions of regions, and what it claims whole, are of the level ``aten`` still.
        decomposition: see ``DecompositionLevel``.
        capturable: whether a region may be recorded into a CUDA graph. What torch allocates for it and it keeps is then
            allocated when it is compiled or bound, or in the first call of each set of sizes: later ones keep nothing.
        uses_current_stream: whether GPU work is queued on torch's current stream.
        deterministic: whether equal inputs give bitwise equal outputs where ``OpView.deterministic`` asks for that, and
            ops that cannot are refused. Without it no op comes then; the reference follows torch's switch by itself.
        reentrant: whether one compiled region may run in several threads at once; if not, calls are serialised, those
            of each binding among themselves: what bindings of one region share is the backend's to guard.
        keeps_random_stream: whether random ops draw exactly what eager would draw; only then may it get them.
        takes_effects: whether it runs mutation, collectives and higher-order ops as eager would.
        takes_whole: full names of the higher-order operators that it takes with the subgraphs that they carry: it is
            asked for a verdict on them, and a region holds their subgraphs as attributes of its graph.
        compiles_graphs: whether it is a compiler of whole graphs, of nearly all operators. Where it can run a graph
            alone it is always tried against a plan in the user's calls, whatever it is estimated to take.
        writes_inputs: whether it takes operators of ``ops.WRITING`` on an input of its region: the value is written
            into the very storage; what comes before in graph order reads the old one, what comes after the new one.
        raises_before_writing: whether a ``run`` that raises has written nothing into inputs. Without it a call that
            raises raises to the user, once its region was checked: eager would write a second time.
        fixed_outputs: whether number, shapes and types of outputs are the region's, and their memory new in each call,
            because of how the code is made, so that no call needs to be checked for it.
        error_budget: see ``ErrorBudget``.
        fused: (producer class, consumer class) pairs between which it keeps values out of memory.
        only_fused_on_processor: those of them between which it does so on the processor alone.
        exact_input_strides: whether compiled code relies on inputs having the traced strides; if not, any strides
            of the traced shape must be fine.
        reference: whether it runs exactly what eager runs; its results are the standard and need no verification.
        concurrent_compile: whether ``compile`` may run in several threads at once; a graph's regions then do.
        compiles_behind: device types of regions for which ``compile`` runs no kernel and needs no values: these may be
            compiled by another process, from their text, while the user's calls go on. There it may open the device.
        row_major: whether it takes and returns row-major tensors alone: what has another layout is copied on the border
            of its regions, and inside them layouts make no difference.
        thread_pool: name of the pool of threads that its kernels run on. Backends that name the same pool share its
            threads; going from one pool to another costs the time in which the first falls asleep and the other wakes.
        shared_rows: rows of the rate tables (``contracts.rate_rows``), with all narrower ones, for which it calls the
            very kernels that the reference calls: on an accelerator these are equally fast for all callers. Rows of
            unaligned products are shared only if they are named: some pad them.
        gathers: whether ops of one region that have nothing to do with each other start at once, so that on a device
            where starting takes longer than they do one region of many is better than many of one.
        mixes_devices: whether one of its regions may hold ops of the processor beside those of an accelerator; if not,
            they are regions apart, also of a backend that runs both.
        pads_products: whether on an accelerator it gives the matrices of unaligned products (``contracts.rate_rows``)
            gaps between rows, so that all begin aligned, while they do not leave the region: what does is copied.
        packaged: see ``Packaged``. Artifacts in a package are loaded without a compiler, on machines of which
            ``loading`` says the same.
    """

    device_types: frozenset[str] = frozenset({"cpu"})
    weights: WeightPolicy = "live"
    level: OpLevel = "aten"
    decomposition: DecompositionLevel = "none"
    capturable: bool = False
    uses_current_stream: bool = True
    deterministic: bool = True
    reentrant: bool = True
    keeps_random_stream: bool = False
    takes_effects: bool = False
    takes_whole: frozenset[str] = frozenset()
    compiles_graphs: bool = False
    writes_inputs: bool = False
    raises_before_writing: bool = False
    fixed_outputs: bool = False
    error_budget: ErrorBudget = field(default_factory=ErrorBudget)
    fused: frozenset[tuple[OpClass, OpClass]] = frozenset()
    only_fused_on_processor: frozenset[tuple[OpClass, OpClass]] = frozenset()
    exact_input_strides: bool = False
    reference: bool = False
    concurrent_compile: bool = False
    compiles_behind: frozenset[str] = frozenset()
    row_major: bool = False
    thread_pool: str = "torch"
    shared_rows: frozenset[str] = frozenset()
    gathers: bool = False
    mixes_devices: bool = False
    pads_products: bool = False
    packaged: Packaged = "no"

    def fused_on(self, device_type: str) -> frozenset[tuple[OpClass, OpClass]]:
        """Pairs of classes between which it keeps values of such devices out of memory."""
        return self.fused if device_type in ("cpu", "meta") else self.fused - self.only_fused_on_processor


class Backend(ABC):
    """A compiler or kernel library that can run parts of a graph.

    Class attributes:
        name: short, lower case, unique; what users write in configurations.
        contract_version: the contract the class was written for. Leave it as it is in source: a plug-in built
            elsewhere must write the literal it was tested with.
    """

    name: ClassVar[str]
    contract_version: ClassVar[str] = CONTRACT_VERSION

    @abstractmethod
    def availability(self) -> Availability:
        """Whether it can be used here, or why not. Cheap; imports as little as possible; never raises."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Text of everything that changes what it would compile: library version, driver, device, flags.

        Part of every cache key: equal fingerprints promise interchangeable artifacts.
        """

    @abstractmethod
    def judge(self, view: OpView) -> Verdict:
        """Whether it can run this op, of the level that it speaks, with correct results, or why not."""

    @abstractmethod
    def compile(self, region: Region) -> CompiledRegion:
        """Compile a region of ops that it supports.

        Raises:
            Exception: anything; the region is then quarantined for this backend and placed elsewhere.
        """

    @abstractmethod
    def traits(self) -> Traits:
        """What holds for all its regions. Constant during a process."""

    def for_measuring(self) -> Backend:
        """The backend as it is where candidates are measured (``max-autotune``): it may take long to compile well.

        Identity, verdicts and fingerprint are the same. It may refuse to load what was compiled in less time.
        """
        return self

    def patterns(self) -> tuple[Pattern, ...]:
        """Multi-op claims."""
        return ()

    def conditions(self) -> RegionConditions:
        """When a region is worth taking at all."""
        return RegionConditions()

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        """A reason not to take a whole region, beyond ``conditions``; ``None`` takes it."""
        return None

    def region_cost(self, sketch: RegionSketch) -> float | None:
        """Seconds of a region, entry included, where the backend knows better than the planner's model."""
        return None

    def prior(self, device: DeviceModel) -> BackendRates | None:
        """Rates to assume before anything was measured; ``None`` takes the planner's defaults."""
        return None

    def build_seconds(self, device_type: str) -> BuildSeconds:
        """What compiling takes, for users who care about it; default: that of a quick compiler."""
        return BuildSeconds(region_s=0.5, op_s=0.005)

    def probes(self, device: DeviceModel) -> tuple[Probe, ...]:
        """What to run once per fingerprint to learn its rates; default: the standard set for its device types."""
        return standard_probes(device)

    def load(self, region: Region, artifact: bytes) -> CompiledRegion:
        """Rebuild a compiled region from ``CompiledRegion.artifact``.

        Raises:
            NotImplementedError: it stores nothing.
            FileNotFoundError: what the artifact refers to is not there, as may happen at any time: nothing is reported,
                and the region compiled anew.
            Exception: the artifact is unusable; it is discarded with a report and the region compiled anew.
        """
        raise NotImplementedError(f"backend {self.name!r} stores no artifacts")

    def loading(self, device_type: str) -> str:
        """Text of everything that must be equal where artifacts of a package are loaded, of regions on such devices; by
        default the fingerprint, of which it may leave out what changes only what would be compiled now."""
        return self.fingerprint()

    def kit(self, device_type: str) -> bytes | None:
        """What it needs beside artifacts to load them where it cannot compile, for packages; ``None``: nothing."""
        return None

    def with_kit(self, kit: bytes) -> Backend:
        """The backend as it loads what was compiled where ``kit`` was made; its availability says whether it can here.

        Raises:
            Exception: the kit cannot be used.
        """
        raise NotImplementedError(f"backend {self.name!r} makes no kits")


def check_backend(candidate: object) -> Backend:
    """Hold a registered object against the contract's form.

    Raises:
        ContractError: it is no backend, or lacks a usable name; all problems at once.
    """
    if not isinstance(candidate, Backend):
        raise ContractError(
            what=f"{type(candidate).__qualname__} is not a subclass of mixbackend.contracts.Backend",
            hint="register an instance or a subclass of Backend",
        )
    name = getattr(candidate, "name", None)
    if not isinstance(name, str) or not name or name != name.lower() or not name.replace("_", "").isalnum():
        raise ContractError(
            what=f"{type(candidate).__qualname__} has no usable name: {name!r}",
            hint="set the class attribute name to a lower-case identifier such as 'my_compiler'",
        )
    return candidate


def check_verdict(answer: object) -> Verdict:
    """Hold an answer of ``judge`` against the contract; anything else becomes a refusal that says so."""
    wrong = misfit(answer, Verdict)
    if wrong:
        return Unsupported("backend-error", f"judge() returned {wrong}")
    verdict = cast(Verdict, answer)
    if isinstance(verdict, Supported) and verdict.cost is not None and not math.isfinite(verdict.cost):
        return Unsupported("backend-error", f"judge() returned a cost of {verdict.cost} seconds")
    return verdict


def taking_effects(backends: Iterable[Backend]) -> frozenset[str]:
    """Names of the backends that run effects as eager would: what ``legality`` asks about backends."""
    return frozenset(backend.name for backend in backends if backend.traits().takes_effects)
