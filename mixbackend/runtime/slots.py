"""Slots: one region of one graph while it runs.

Place: between the stitched function and the code a backend compiled.
Input: the region's arguments at each call. Output: its results, with the strides that consumers rely on.
Invariants: the caller always gets a right result unless the policy is to raise: a call that fails or is found wrong is
answered by eager, and the failure is reported once to the graph, which places the region anew for later calls. Inputs
that the region writes into are put back before eager answers, and their versions count up as eager's do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import sympy
import torch

from mixbackend.contracts import (
    Backend,
    BoundRun,
    CompiledRegion,
    Condition,
    ErrorBudget,
    Region,
    RegionRunError,
    SymbolicSize,
    TensorMeta,
    VerificationError,
)
from mixbackend.contracts.numerics import Deviation
from mixbackend.contracts.region import RunFunction
from mixbackend.runtime.strides import Restride, restrider
from mixbackend.runtime.threads import sharing
from mixbackend.runtime.verify import (
    TF32_FLOOR,
    Check,
    before_writing,
    check_region,
    eager_result,
    may_round_to_tf32,
    random_states,
    set_random_states,
)

VerifyWhen = Literal["off", "first_call", "sampled", "always"]

SAMPLE_EVERY = 256
"""With ``verify: sampled``, one call in this many is held against the reference."""

TIMED_CALLS = 5
"""So many calls of a region are timed."""

FailureKind = Literal["run", "verify"]


@dataclass(frozen=True)
class SlotPolicy:
    """How a slot behaves.

    Attributes:
        verify: when to hold results against the reference.
        factor: error allowed over eager's own error; the backend's own budget may be wider.
        strict: raise on failure instead of answering by eager.
        remembered: whether this region was verified before, on this machine or in this process.
    """

    verify: VerifyWhen
    factor: float
    strict: bool
    remembered: bool


class RegionSlot:
    """Runs one region; see the module's docstring.

    Args:
        region: what was compiled.
        backend: its owner.
        compiled: the owner's answer.
        policy: see ``SlotPolicy``.
        on_failure: called with (slot, kind, text) after a failure; must not raise.
        on_verified: called with backend and region after the first successful verification.
        on_unverified: called with (slot, text) where a call's result could not be held against eager's.
    """

    def __init__(
        self,
        region: Region,
        backend: Backend,
        compiled: CompiledRegion,
        policy: SlotPolicy,
        on_failure: Callable[[RegionSlot, FailureKind, str], None],
        on_verified: Callable[[Backend, Region], None],
        on_unverified: Callable[[RegionSlot, str], None] = lambda slot, text: None,
    ) -> None:
        self.region = region
        self.backend = backend
        self.compiled = compiled
        self._policy = policy
        self._on_failure = on_failure
        self._on_verified = on_verified
        self._on_unverified = on_unverified
        self._traits = backend.traits()
        self._written = region.written
        self._run = self._prepared(self._rested(compiled.run))
        self._restriders = _restriders(region, compiled)
        self._conditions = tuple((_size_reader(region, item), item) for item in compiled.preconditions)
        self._bound: BoundRun | None = None
        self._seconds: list[float] = []
        self._calls = 0
        self._clock = _clock_of(region)
        self._call = self._first_call()
        self._paused: Callable[[list[Any]], Sequence[Any]] | None = None

    @property
    def settled(self) -> bool:
        """Whether calls are not held against the reference any more: later ones do nothing but run."""
        return self._call not in (self._checked, self._sampled)

    def unguarded(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the region for a recording: nothing is verified or timed, and what it raises is raised."""
        if self._conditions and not self._admissible(inputs):
            return eager_result(self.region, inputs)
        return self._restride(self._run(inputs))

    @property
    def measured_s(self) -> float | None:
        """Median seconds of a few calls, the first ones or those after ``time_again``; ``None`` before."""
        return median(self._seconds) if self._seconds else None

    def time_again(self) -> None:
        """Time the next calls instead of the first ones; a slot that still verifies times those that come after."""
        if self._call == self._fast:
            self._call = self._timed
        elif self._call == self._settled:
            self._call = self._reference
        self._seconds.clear()

    @property
    def bound(self) -> BoundRun | None:
        """Code for known constants, if it runs such."""
        return self._bound

    def bind(self, constants: Sequence[torch.Tensor | None]) -> None:
        """Run code for these values from now on, where the backend makes such.

        Args:
            constants: one entry per region input, ``None`` for those that are no constants.

        Raises:
            Exception: whatever the backend raises.
        """
        if self.compiled.bind is None or all(value is None for value in constants):
            return
        self._bound = self.compiled.bind(constants)
        self._run = self._prepared(self._rested(self._bound.run))
        if self._paused is not None:
            self._call, self._paused = self._paused, None

    def run_eager(self) -> None:
        """Run what eager runs, for any values, until it is bound again: nothing is verified or timed meanwhile."""
        self._bound = None
        self._paused = self._paused or self._call
        self._run = self._prepared(lambda inputs: eager_result(self.region, inputs))
        self._call = lambda inputs: self._restride(self._run(inputs))

    def _rested(self, run: RunFunction) -> RunFunction:
        """The backend's code, while torch's threads do not take the cores from its own."""
        return sharing.rested(self._traits.thread_pool, run)

    def _prepared(self, run: RunFunction) -> RunFunction:
        run = run if self._traits.reentrant else _serialised(run)
        return run if self._traits.reference or not self._written else _counted(run, self._written)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the region on tensors and numbers in the order of ``region.inputs``."""
        return self._call(inputs)

    def _first_call(self) -> Callable[[list[Any]], Sequence[Any]]:
        if self._traits.reference:
            return self._reference
        if self._policy.verify == "off":
            return self._timed
        if self._policy.verify == "first_call" and self._policy.remembered:
            return self._timed
        return self._checked

    def _reference(self, inputs: list[Any]) -> Sequence[Any]:
        """Eager: what it raises is what the user's code raises."""
        start = self._clock()
        outputs = self._restride(self._run(inputs))
        self._note_time(self._clock() - start)
        return outputs

    def _checked(self, inputs: list[Any]) -> Sequence[Any]:
        """A call whose result is held against the reference."""
        if not self._admissible(inputs):
            return eager_result(self.region, inputs)
        before, states = before_writing(self.region, inputs), random_states(self.region)
        try:
            outputs = tuple(self._run(inputs))
            problem = self._malformed(inputs, outputs)
        except Exception as error:
            self._restore(inputs, before)
            set_random_states(states)
            return self._failed(inputs, error)
        written = [inputs[place] for place in self._written]
        check = Check(problem)
        if problem is None:
            check = check_region(self.region, before, outputs, self._budget(), written, states)
        if check.deviation is not None:
            self._restore(inputs, before)
            set_random_states(states)
            return self._wrong(inputs, check.deviation)
        if self._policy.verify != "always":
            self._call = self._sampled if self._policy.verify == "sampled" else self._timed
        if check.right:
            self._on_verified(self.backend, self.region)
        else:
            self._on_unverified(self, check.unknown)
        return self._restride(outputs)

    def _sampled(self, inputs: list[Any]) -> Sequence[Any]:
        self._calls += 1
        return self._checked(inputs) if self._calls % SAMPLE_EVERY == 0 else self._fast(inputs)

    def _timed(self, inputs: list[Any]) -> Sequence[Any]:
        start = self._clock()
        outputs = self._fast(inputs)
        self._note_time(self._clock() - start)
        if len(self._seconds) >= TIMED_CALLS and self._call == self._timed:
            self._call = self._fast
        return outputs

    def _fast(self, inputs: list[Any]) -> Sequence[Any]:
        if self._conditions and not self._admissible(inputs):
            return eager_result(self.region, inputs)
        try:
            outputs = self._run(inputs)
        except Exception as error:
            return self._failed(inputs, error)
        return self._restride(outputs) if self._restriders else outputs

    def _note_time(self, seconds: float) -> None:
        if len(self._seconds) < TIMED_CALLS:
            self._seconds.append(seconds)
        elif self._call == self._reference:
            self._call = self._settled

    def _settled(self, inputs: list[Any]) -> Sequence[Any]:
        return self._restride(self._run(inputs))

    def _restride(self, outputs: Sequence[Any]) -> Sequence[Any]:
        if not self._restriders:
            return outputs
        changed = list(outputs)
        for index, restride in self._restriders:
            changed[index] = restride(changed[index])
        return changed

    def _restore(self, inputs: Sequence[Any], before: Sequence[Any]) -> None:
        with torch.no_grad():
            for place in self._written:
                inputs[place].copy_(before[place])

    def _admissible(self, inputs: list[Any]) -> bool:
        return all(condition.holds(read(inputs)) for read, condition in self._conditions)

    def _budget(self) -> ErrorBudget:
        own = self._traits.error_budget
        floor = max(own.floor, TF32_FLOOR) if may_round_to_tf32(self.region) else own.floor
        return ErrorBudget(max(own.factor, self._policy.factor), floor)

    def _malformed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Deviation | None:
        """Form of the outputs: number, type, and storage that belongs to nobody else."""
        if len(outputs) != len(self.region.outputs):
            return Deviation(len(outputs), float("inf"), 0.0, 0.0, "shape")
        seen = {value.data_ptr(): index for index, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
        for index, (output, expected) in enumerate(zip(outputs, self.region.outputs, strict=True)):
            if not isinstance(output, torch.Tensor):
                return Deviation(index, float("inf"), 0.0, 0.0, "dtype")
            shared = seen.get(output.data_ptr()) if output.numel() else None
            if shared is not None and shared != expected.alias_of and output.data_ptr():
                return Deviation(index, float("inf"), 0.0, 0.0, "storage")
            promised = self.compiled.strides == "as_traced" and expected.exact_stride
            enforce = restrider(expected.meta) if promised and tuple(output.shape) == _shape(expected.meta) else None
            if enforce is not None and enforce(output) is not output:
                return Deviation(index, float("inf"), 0.0, 0.0, "stride")
        return None

    def _failed(self, inputs: list[Any], error: Exception) -> Sequence[Any]:
        text = f"{type(error).__name__}: {error}"
        if self._policy.strict:
            raise RegionRunError(
                what=f"backend {self.backend.name!r} failed while running a region: {text}",
                where=describe_region(self.region),
                hint="forbid the backend for these ops, or use on_failure: repair",
            ) from error
        return self._answer_by_eager(inputs, "run", text)

    def _wrong(self, inputs: list[Any], deviation: Deviation) -> Sequence[Any]:
        if self._policy.strict:
            raise VerificationError(
                what=f"backend {self.backend.name!r} gave a wrong result: {deviation}",
                where=describe_region(self.region),
                hint="forbid the backend for these ops, or use on_failure: repair",
            )
        return self._answer_by_eager(inputs, "verify", str(deviation))

    def _answer_by_eager(self, inputs: list[Any], kind: FailureKind, text: str) -> Sequence[Any]:
        self._call = lambda later: self._restride(eager_result(self.region, later))
        self._on_failure(self, kind, text)
        return self._call(inputs)


def describe_region(region: Region) -> str:
    """Where a region is, in the user's terms: its name, ops and source lines."""
    ops = ", ".join(dict.fromkeys(view.op for view in region.views))
    sources = "; ".join(region.sources[:4]) or "unknown source line"
    return f"region {region.id} ({ops}) from {sources}"


def _clock_of(region: Region) -> Callable[[], float]:
    """Seconds; of a region on a GPU, when all work that was queued before is done."""
    metas = [*(item.meta for item in region.inputs), *(item.meta for item in region.outputs)]
    if not any(isinstance(meta, TensorMeta) and meta.device.type == "cuda" for meta in metas):
        return time.perf_counter

    def after_queue() -> float:
        torch.cuda.current_stream().synchronize()
        return time.perf_counter()

    return after_queue


def _shape(meta: TensorMeta) -> tuple[Any, ...]:
    return tuple(meta.shape)


def _restriders(region: Region, compiled: CompiledRegion) -> tuple[tuple[int, Restride], ...]:
    found = []
    for index, output in enumerate(region.outputs):
        if not output.exact_stride or compiled.strides == "as_traced":
            continue
        if compiled.strides == "contiguous" and output.meta.contiguous() and not output.meta.dynamic:
            continue
        enforce = restrider(output.meta)
        if enforce is not None:
            found.append((index, enforce))
    return tuple(found)


def _serialised(run: Callable[[Sequence[Any]], Sequence[Any]]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    lock = threading.Lock()

    def locked(inputs: Sequence[Any]) -> Sequence[Any]:
        with lock:
            return run(inputs)

    return locked


def _counted(run: RunFunction, written: tuple[int, ...]) -> RunFunction:
    """A run that tells autograd what it wrote into, so that stale saved tensors are found as in eager."""

    def counted(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        outputs = run(inputs)
        torch.autograd.graph.increment_version([inputs[place] for place in written])
        return outputs

    return counted


def _size_reader(region: Region, condition: Condition) -> Callable[[Sequence[Any]], int]:
    """How to read a condition's size from the arguments.

    Raises:
        ValueError: no inputs show what this size is made of.
    """
    if not isinstance(condition.size, SymbolicSize):
        constant = condition.size
        return lambda inputs: constant
    shown = _shown(region, condition.size.expression)
    if shown is not None:
        return shown
    symbols = sorted(condition.size.expression.free_symbols, key=str)
    readers = [_shown(region, symbol) for symbol in symbols]
    if not symbols or any(reader is None for reader in readers):
        raise ValueError(f"no input of region {region.id} shows the size of the precondition {condition}")
    expression = condition.size.expression
    return lambda inputs: int(
        expression.xreplace(
            {symbol: sympy.Integer(reader(inputs)) for symbol, reader in zip(symbols, readers, strict=True) if reader}
        )
    )


def _shown(region: Region, wanted: sympy.Expr) -> Callable[[Sequence[Any]], int] | None:
    """How to read a size that some input shows as it is."""
    for position, item in enumerate(region.inputs):
        if isinstance(item.meta, SymbolicSize) and item.meta.expression == wanted:
            return lambda inputs, position=position: inputs[position]  # type: ignore[misc]
        shape = item.meta.shape if isinstance(item.meta, TensorMeta) else ()
        for dimension, size in enumerate(shape):
            if isinstance(size, SymbolicSize) and size.expression == wanted:
                return lambda inputs, position=position, dimension=dimension: inputs[position].shape[dimension]  # type: ignore[misc]
    return None
