"""A clock that only moves when told, and a backend whose speed is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from mixbackend.calibrate import probing
from mixbackend.contracts import (
    Availability,
    Backend,
    CompiledRegion,
    DeviceModel,
    OpTag,
    OpView,
    Region,
    Supported,
    TensorMeta,
    Traits,
    Unsupported,
    Verdict,
)
from mixbackend.contracts import probes as probes_module
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.partitioner.work import flops_of

DEVICE = DeviceModel("cpu test", (("float32", 1e11),), 1e10, 1e8, 5e10, 1e-6, 1, "probed")
ENTRY_S, CROSSING_S, OVERHEAD_S, FLOPS_PER_S, MEMORY_SCALE = 7e-6, 4e-7, 2e-6, 5e10, 1.5


@dataclass
class Clock:
    """Seconds that pass only by ``advance``."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def computing(region: Region) -> Callable[[Sequence[Any]], Sequence[torch.Tensor]]:
    """Thousands of calls are timed: those with the tensors of the last one need no computing."""
    last: tuple[Sequence[Any], Sequence[torch.Tensor]] | None = None

    def computed(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        nonlocal last
        if last is None or any(new is not old for new, old in zip(inputs, last[0], strict=True)):
            last = (tuple(inputs), region.graph_module(*inputs))
        return last[1]

    return computed


@dataclass
class KnownBackend(Backend):
    """Runs torch's kernels and lets a clock pass as long as its stated rates say."""

    name: ClassVar[str] = "known"
    clock: Clock = field(default_factory=Clock)
    version: str = "1"
    compile_s: float = 0.0
    refused: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    compiled: list[Region] = field(default_factory=list)

    def availability(self) -> Availability:
        return Availability(True)

    def fingerprint(self) -> str:
        return self.version

    def traits(self) -> Traits:
        return Traits()

    def judge(self, view: OpView) -> Verdict:
        return Unsupported("declined", "not this one") if view.op in self.refused else Supported()

    def compile(self, region: Region) -> CompiledRegion:
        self.compiled.append(region)
        self.clock.advance(self.compile_s)
        if any(view.op in self.broken for view in region.views):
            raise RuntimeError("no kernel\nand a long story")
        seconds = self.seconds(region)
        computed = computing(region)

        def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
            self.clock.advance(seconds)
            return computed(inputs)

        return CompiledRegion(run)

    def seconds(self, region: Region, flops_per_s: float = FLOPS_PER_S) -> float:
        """What a call of a region takes."""
        model = RooflineCostModel(DEVICE, {self.name: _rates(self.name)})
        seconds = ENTRY_S + CROSSING_S * (len(region.inputs) + len(region.outputs))
        for view in region.views:
            if OpTag.VIEW in view.node.tags or view.op == "getitem":
                continue
            # Clamping is traffic alone, as it is on real machines.
            flops = 0.0 if view.op == "aten.relu.default" else flops_of(view)
            arithmetic, traffic = flops / flops_per_s, self._traffic(model, view)
            hidden = DEVICE.hides_traffic(view.op_class)
            seconds += OVERHEAD_S + (max(arithmetic, traffic) if hidden else arithmetic + traffic)
        return seconds

    def _traffic(self, model: RooflineCostModel, view: OpView) -> float:
        """Weights come from main memory, all else from where its size puts it."""
        seconds = sum(model.write(self.name, meta) for meta in view.output_tensors[:1])
        for item in view.inputs:
            if isinstance(item.meta, TensorMeta):
                waits = item.role.is_weight
                read = model.weight(self.name, item.meta) if waits else model.read(self.name, item.meta)
                seconds += read
        return seconds


def _rates(name: str) -> Any:
    from mixbackend.contracts import BackendRates

    return BackendRates(name, ENTRY_S, CROSSING_S, MEMORY_SCALE)


@pytest.fixture(autouse=True)
def same_probes_on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether half precision is probed depends on the processor; tests of that say so themselves."""
    monkeypatch.setattr(probes_module, "has_fast_bfloat16", lambda: False)


_TRACED: dict[Any, Any] = {}
_MEANING = (int, tuple, list, type(torch.ops.aten))
"""What functions of probes close over: all of these are what their text says."""


@pytest.fixture(autouse=True)
def probes_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same thirty probes are compiled in nearly every test here, and tracing takes most of the time of that."""
    trace = probing.trace_graph

    def remembered(function: Callable[..., Any], values: Sequence[torch.Tensor], *, roles: Mapping[int, Any]) -> Any:
        cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        if not hasattr(function, "__code__") or not all(isinstance(item, _MEANING) for item in cells):
            return trace(function, values, roles=roles)
        layouts = tuple((value.dtype, value.shape, value.stride()) for value in values)
        key = (function.__code__, repr(cells), layouts, repr(sorted(roles.items())))
        if key not in _TRACED:
            _TRACED[key] = trace(function, values, roles=roles)
        return _TRACED[key]

    monkeypatch.setattr(probing, "trace_graph", remembered)


_DRAWN: dict[Any, torch.Tensor] = {}


@pytest.fixture(autouse=True)
def inputs_of_probes_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their numbers mean nothing to a clock that is told the time, and drawing them takes most of what remains."""
    draw = torch.randn

    def remembered(*sizes: Any, generator: torch.Generator | None = None, **options: Any) -> torch.Tensor:
        if generator is None:
            return draw(*sizes, **options)
        key = (sizes, repr(options))
        if key not in _DRAWN:
            _DRAWN[key] = draw(*sizes, generator=generator, **options)
        return _DRAWN[key].clone()

    monkeypatch.setattr(torch, "randn", remembered)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backend(clock: Clock) -> KnownBackend:
    return KnownBackend(clock=clock)
