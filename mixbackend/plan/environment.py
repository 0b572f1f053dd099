"""The environment: what all graphs of one configuration share.

Place: made once per configuration by ``compile.open_environment``; passed down to every stage that needs more than one
part of it. What needs one part takes that part.
Invariants: a value: nothing in it is replaced. What its parts remember, they guard themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mixbackend.configuration import Config
from mixbackend.contracts import Backend, OpGraph
from mixbackend.execute.compile_cache import CompileCache
from mixbackend.execute.failures import Failures
from mixbackend.host.background import Background
from mixbackend.host.debug import DebugSettings
from mixbackend.host.devices import device_name
from mixbackend.plan.locked_plans import LockedPlans
from mixbackend.plan.planner import Planner
from mixbackend.registry import BackendInfo
from mixbackend.reporting import EventLog
from mixbackend.storage import Storage


@dataclass(frozen=True, eq=False, slots=True)
class Environment:
    """See the module's docstring.

    Attributes:
        config: what the user asked for.
        records: whether what runs on a GPU is recorded into CUDA graphs.
        debug: what is printed and written while compiling.
        events: what happened, for the report.
        backends: that may be used, in order of preference among equals.
        reference: the one of them that runs exactly what eager runs.
        fingerprints: of the backends, by name.
        skipped: backends that cannot be used here, with the reason.
        storage: what is kept on disk; opened when it is first asked for.
        planner: places graphs.
        failures: which backend failed on which region.
        compile_cache: makes code of regions.
        lock: the plans that were locked, ``None`` if the configuration names no file.
        background: does what is prepared for later calls.
        owns_weights: whether the weights of its graphs change only by passing others.
    """

    config: Config
    records: bool
    debug: DebugSettings
    events: EventLog
    backends: tuple[Backend, ...]
    reference: Backend
    fingerprints: Mapping[str, str]
    skipped: tuple[BackendInfo, ...]
    storage: Storage
    planner: Planner
    failures: Failures
    compile_cache: CompileCache
    lock: LockedPlans | None
    background: Background
    owns_weights: bool = False

    @property
    def strict(self) -> bool:
        """Whether what goes wrong is an error instead of another placement."""
        return self.config.on_failure == "raise" or self.config.lock.frozen

    def for_good(self) -> Environment:
        """Where calls will not try other plans: first plans are made by cost alone."""
        return replace(self, planner=replace(self.planner, improves=False)) if self.planner.improves else self

    def device(self, graph: OpGraph) -> str:
        """Name of the device that a graph works on, with the product: what was measured there holds there alone."""
        return device_name(graph.device_type)
