"""Constants into engines: given to a copy of one engine, or inside of an engine of their own.

Place: behind ``CompiledRegion.bind`` and ``prepare_binding``. Input: a region's plan, the engine that was built for all
values of its weights if there is one, the values. Output: ``BoundRun``, or ``Binding``: an engine that is yet to be
built, under a name that tells the values.
Invariants: what is built holds the very values that its name was computed of, since they are read once; an engine is
taken up again only for the same model, sizes and values. Without binding ``run`` is right, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.backends.common import forks
from mixbackend.backends.tensorrt.artifact import EngineArtifact
from mixbackend.backends.tensorrt.model import Prepared, Weight
from mixbackend.backends.tensorrt.plan import EnginePlan
from mixbackend.backends.tensorrt.running import Engine, constant_at
from mixbackend.contracts import Binding, BoundRun

_READERS = 4
"""Threads that hash values, which they do without the interpreter's lock."""


@dataclass(frozen=True)
class _Read:
    """Constants that become weights, as they were at one moment: copies on the processor, by place."""

    values: Mapping[int, torch.Tensor]

    @staticmethod
    def of(prepared: Prepared, constants: Sequence[torch.Tensor | None]) -> _Read:
        places = sorted({weight.place for weight in prepared.weights})
        return _Read({place: _copied(constant_at(place, constants).detach()) for place in places})

    @property
    def digest(self) -> str:
        """Of all values with their places, types and shapes; 220 MB take a core about a quarter of a second."""
        with ThreadPoolExecutor(_READERS, "mixbackend-digest") as pool:
            digests = list(pool.map(_digest, self.values.values()))
        found = hashlib.sha256()
        for (place, value), digest in zip(self.values.items(), digests, strict=True):
            found.update(f"{place} {value.dtype} {tuple(value.shape)};".encode() + digest)
        return found.hexdigest()

    def __call__(self, weight: Weight) -> torch.Tensor:
        return weight.of(self.values[weight.place])


def _once(value: torch.Tensor) -> torch.Tensor:
    """Without what is repeated: along axes of stride zero all values are the same."""
    for axis in (axis for axis, step in enumerate(value.stride()) if step == 0):
        value = value.narrow(axis, 0, 1)
    return value


def _digest(value: torch.Tensor) -> bytes:
    return hashlib.sha256(_once(value).reshape(-1).view(torch.uint8).numpy().data).digest()


def _copied(value: torch.Tensor) -> torch.Tensor:
    return _once(value).contiguous().to("cpu", copy=True).expand(value.shape)


class AnyValues:
    """Binds by giving weights to an engine that takes any; an engine without weights is one, too.

    Args:
        plan: of the region.
        serialised: its engine.
        opened: the same, if it was opened before: the first binding takes it.
    """

    def __init__(self, plan: EnginePlan, serialised: bytes | memoryview, opened: Engine | None = None) -> None:
        self._plan = plan
        self._serialised = serialised
        self._opened = [opened] if opened is not None else []
        self._lock = forks.long_lock()

    def bind(self, constants: Sequence[torch.Tensor | None]) -> BoundRun:
        """See ``BindFunction``."""
        engine = self.engine()
        if self._plan.prepared.weights:
            engine.refit(constants)
        return bound_run(self._plan.prepared, engine, constants)

    def unbound(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """A call without binding: gives the engine its weights first."""
        return list(self.bind(inputs).run(inputs))

    def engine(self) -> Engine:
        """An engine that nothing else uses."""
        with self._lock:
            if self._opened:
                return self._opened.pop()
        return self._plan.open(self._serialised)


class OwnValues:
    """Binds by building an engine with the values inside.

    Args:
        plan: of the region.
    """

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._lock = forks.long_lock()
        self._last: tuple[str, BoundRun] | None = None

    def prepare(self, constants: Sequence[torch.Tensor | None]) -> Binding:
        """See ``PrepareBindingFunction``."""
        plan, read = self._plan, _Read.of(self._plan.prepared, constants)
        digest = read.digest
        model = f"{plan.prepared.digest} with {digest}"

        def build() -> bytes:
            built = plan.build(read, refit=False)
            return EngineArtifact(model, plan.sizes, frozenset(), built.seconds, built.engine).to_bytes()

        def load(content: bytes) -> BoundRun:
            artifact = EngineArtifact.from_bytes(content)
            artifact.check(model, plan.sizes)
            return bound_run(plan.prepared, plan.open(artifact.engine), constants, artifact.note)

        return Binding(digest, build, load)

    def bind(self, constants: Sequence[torch.Tensor | None]) -> BoundRun:
        """See ``BindFunction``."""
        binding = self.prepare(constants)
        return binding.load(binding.build())

    def unbound(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """A call without binding: builds an engine if the values are not those of the last call."""
        with self._lock:
            binding = self.prepare(inputs)
            if self._last is None or self._last[0] != binding.digest:
                self._last = (binding.digest, binding.load(binding.build()))
            return list(self._last[1].run(inputs))


def bound_run(prepared: Prepared, engine: Engine, constants: Sequence[torch.Tensor | None], *notes: str) -> BoundRun:
    """An engine that has its weights, with the constants that it takes at each call."""
    kept = {
        item.place: constant_at(item.place, constants).detach().to(item.dtype)
        for item in prepared.entrances
        if item.constant
    }
    weight_bytes = sum(weight.nbytes for weight in prepared.weights)
    own = sum(value.nbytes for place, value in kept.items() if value.data_ptr() != _address(constants[place]))

    def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
        return engine.run([kept.get(place, value) for place, value in enumerate(inputs)] if kept else inputs)

    scratch = f"{engine.scratch_bytes / 2**20:.0f} MiB of scratch memory"
    return BoundRun(run, weight_bytes + own + engine.scratch_bytes, (*notes, scratch))


def _address(value: torch.Tensor | None) -> int:
    return -1 if value is None else value.data_ptr()
