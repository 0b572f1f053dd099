"""Stand-in backends: some that behave, some that misbehave in one way each; costs that make the first of a list win.

The fixtures, which are all that ``*`` imports, are imported so by the ``conftest.py`` of each folder whose tests use
them; ``_fresh`` then holds for all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from flat_costs import FlatCosts
from plain_backend import PlainBackend

from mixbackend.backends.eager import EagerBackend
from mixbackend.compile import tried_entry
from mixbackend.compile.mixture import Mixture
from mixbackend.contracts import Backend, BoundRun, BuildSeconds, CompiledRegion, Region, Traits
from mixbackend.cost import costs as costs_module
from mixbackend.cost.costs import SessionCosts
from mixbackend.registry import isolated_registry
from mixbackend.select.live import allowance, call_meter, processor_challengers, turns

__all__ = ("_fresh", "faulty", "loopback", "make_mixture", "packer", "sleeper", "tried_at_once", "worth_comparing")

sleep = time.sleep
"""What sleepers do."""

CHEAPEST_FIRST = FlatCosts(seconds={"eager": 1e-3})
"""Every op costs a microsecond, a thousand on eager."""


class Loopback(PlainBackend):
    """Runs regions with torch, but hands out fresh row-major tensors as a foreign runtime would."""

    name = "loopback"

    def __init__(self) -> None:
        self.compiled: list[Region] = []
        self.calls = 0

    def compile(self, region: Region) -> CompiledRegion:
        self.compiled.append(region)
        forward = region.graph_module.forward

        def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
            self.calls += 1
            return [output.clone(memory_format=torch.contiguous_format) for output in forward(*inputs)]

        return CompiledRegion(run, strides="contiguous")


class Packer(Loopback):
    """A loopback that keeps copies of constants, as a backend does that packs them."""

    name = "packer"

    def __init__(self) -> None:
        super().__init__()
        self.binds = 0
        self.bind_error: Exception | None = None
        self.bind_s = 0.0

    def traits(self) -> Traits:
        return Traits(weights="refit")

    def compile(self, region: Region) -> CompiledRegion:
        compiled = super().compile(region)

        def bind(constants: Sequence[torch.Tensor | None]) -> BoundRun:
            if self.bind_error is not None:
                raise self.bind_error
            self.binds += 1
            time.sleep(self.bind_s)
            kept = [None if value is None else value.clone() for value in constants]

            def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
                return compiled.run([given if own is None else own for own, given in zip(kept, inputs, strict=True)])

            return BoundRun(run, sum(value.nbytes for value in kept if value is not None), ("packed",))

        return CompiledRegion(compiled.run, bind=bind, strides="contiguous")


Change = Callable[[list[torch.Tensor]], list[torch.Tensor]]


class Faulty(Loopback):
    """A loopback whose results are changed, or that raises."""

    name = "faulty"

    def __init__(
        self,
        change: Change | None = None,
        *,
        compile_error: Exception | None = None,
        run_error: Exception | None = None,
        strides: Any = "contiguous",
        only: str = "",
    ) -> None:
        super().__init__()
        self._change = change
        self._compile_error = compile_error
        self._run_error = run_error
        self._strides = strides
        self._only = only

    def compile(self, region: Region) -> CompiledRegion:
        concerned = not self._only or any(view.op == self._only for view in region.views)
        if self._compile_error is not None and concerned:
            raise self._compile_error
        inner = super().compile(region)

        def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
            if self._run_error is not None and concerned:
                raise self._run_error
            outputs = list(inner.run(inputs))
            return self._change(outputs) if self._change is not None and concerned else outputs

        return CompiledRegion(run, strides=self._strides)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: CHEAPEST_FIRST)
    torch.manual_seed(0)


@pytest.fixture
def make_mixture(tmp_path: Path) -> Iterator[Callable[..., Mixture]]:
    """Makes a mixture of the given backends and eager, with a cache of its own; strict unless told otherwise."""
    from mixbackend.configuration import load_config

    contexts = []

    def make(*backends: Backend, **options: Any) -> Mixture:
        context = isolated_registry(*backends, EagerBackend())
        context.__enter__()
        contexts.append(context)
        settings = {
            "backends": [*(backend.name for backend in backends), "eager"],
            "cache": {"dir": str(tmp_path / "cache")},
            "on_failure": "raise",
            **options,
        }
        return Mixture(load_config(settings))

    yield make
    for context in reversed(contexts):
        context.__exit__(None, None, None)


@pytest.fixture
def loopback() -> Loopback:
    return Loopback()


@pytest.fixture
def packer() -> Packer:
    return Packer()


@pytest.fixture
def faulty() -> type[Faulty]:
    return Faulty


@pytest.fixture
def worth_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody's rates but the fallback's count as measured, and no graph is too small to be compared."""
    monkeypatch.setattr(
        SessionCosts, "comparable", lambda self, graph: {item.name for item in self.backends} - {EagerBackend.name}
    )
    monkeypatch.setattr(processor_challengers, "LEAST_S", 0.0)


@pytest.fixture
def tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """See ``try_at_once``."""
    try_at_once(monkeypatch)


class SimulatedClock:
    """Goes on by what sleepers sleep, and by a millisecond for each look at it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def try_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls have paid for trying from the first one on, a turn is two calls, and sleepers alone take time."""
    clock = SimulatedClock()
    monkeypatch.setattr(tried_entry, "clock", clock)
    monkeypatch.setitem(globals(), "sleep", clock.sleep)
    monkeypatch.setattr(allowance, "LEAST_S", 0.0)
    monkeypatch.setattr(allowance, "LEAST_CALLS", 1)
    monkeypatch.setattr(allowance, "SHARE", 1e6)
    monkeypatch.setattr(call_meter, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(turns, "TURN_S", 0.0)


def settle(mixture: Any, call: Callable[[], object], most: int = 1000) -> None:
    """Call until no other program is tried any more."""
    for _ in range(most):
        call()
        if mixture.settled():
            return
    raise AssertionError(f"not settled: {[graph['selection'] for graph in mixture.report().to_dict()['graphs']]}")


class Sleeper(Loopback):
    """Takes a while to compile, and to run; says how long building takes."""

    def __init__(
        self,
        name: str,
        seconds: float,
        error: Exception | None = None,
        pool: str = "",
        compiling_s: float = 0.0,
        build_s: float = 2.0,
    ) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self.seconds = seconds
        self.error = error
        self.pool = pool
        self.compiling_s = compiling_s
        self.build_s = build_s

    def build_seconds(self, device_type: str) -> BuildSeconds:
        return BuildSeconds(self.build_s)

    def traits(self) -> Traits:
        return Traits(thread_pool=self.pool or self.name)

    def compile(self, region: Region) -> CompiledRegion:
        time.sleep(self.compiling_s)
        inner = super().compile(region)

        def run(inputs: Any) -> Any:
            if self.error is not None:
                raise self.error
            sleep(self.seconds)
            return inner.run(inputs)

        return CompiledRegion(run, strides="contiguous")


@pytest.fixture
def sleeper() -> type[Sleeper]:
    """Backends that take a while; all of them cost the same by estimates, so the first is chosen."""
    return Sleeper
