"""Backends that are deliberately wrong, each in one way that its ``reason`` names, and one that is right."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from plain_backend import PlainBackend

from mixbackend.contracts import (
    BoundRun,
    CompiledRegion,
    OpView,
    Region,
    Supported,
    Traits,
    Unsupported,
    Verdict,
    refuse_special,
)

RELU, ADD, EXP, CLONE, MUL = (
    f"aten.{name}" for name in ("relu.default", "add.Tensor", "exp.default", "clone.default", "mul.Tensor")
)
Inputs = Sequence[Any]
Outputs = list[torch.Tensor]


class Right(PlainBackend):
    """Runs regions with torch into fresh memory."""

    name = "right"
    reason: ClassVar[str] = ""
    claims: ClassVar[tuple[str, ...]] = (RELU, ADD, EXP, CLONE, MUL)

    def judge(self, view: OpView) -> Verdict:
        if view.op not in self.claims:
            return Unsupported("unknown-op", "not mine")
        return refuse_special(view) or Supported()

    def compile(self, region: Region) -> CompiledRegion:
        return CompiledRegion(self.runner(region), strides="unknown")

    def runner(self, region: Region) -> Callable[[Inputs], Outputs]:
        def run(inputs: Inputs) -> Outputs:
            with torch.no_grad():
                return [value.clone() for value in region.graph_module.forward(*inputs)]

        return run


class Wrong(Right):
    """A change of what is right: ``wrong`` gets the inputs of a call, and what computes it right."""

    def runner(self, region: Region) -> Callable[[Inputs], Outputs]:
        right = super().runner(region)
        return lambda inputs: self.wrong(list(inputs), right)

    def wrong(self, inputs: Inputs, right: Callable[[Inputs], Outputs]) -> Outputs:
        raise NotImplementedError


class NarrowNumbers(Wrong):
    """Computes float64 in float32."""

    name, reason = "narrow_numbers", "values"

    def wrong(self, inputs, right):
        narrow = [value.float().double() if value.dtype is torch.float64 else value for value in inputs]
        return right(narrow)


class RepeatsWrongly(Wrong):
    """Takes the first elements of what has to be repeated."""

    name, reason = "repeats_wrongly", "broadcasting"

    def wrong(self, inputs, right):
        shape = inputs[0].shape
        return right([value if value.shape == shape else value[:1].expand(shape) for value in inputs])


class NeedsElements(Wrong):
    """Fails where there are no elements."""

    name, reason = "needs_elements", "zero-size"

    def wrong(self, inputs, right):
        largest = [value.max() for value in inputs]  # as if to scale by it
        return right(inputs) if largest else []


class RowMajorOnly(Wrong):
    """Reads memory in the order in which row-major tensors lie."""

    name, reason = "row_major_only", "strides"

    def runner(self, region):
        right = Right.runner(self, region)
        traced = [tuple(map(int, item.meta.stride)) if not item.meta.dynamic else None for item in region.inputs]

        def run(inputs: Inputs) -> Outputs:
            rows = [torch.empty(value.shape).stride() for value in inputs]
            steps = [row if step is None else step for row, step in zip(rows, traced, strict=True)]
            return right([value.as_strided(value.shape, step) for value, step in zip(inputs, steps, strict=True)])

        return run


class OneBuffer(Wrong):
    """Returns the same memory in every call."""

    name, reason = "one_buffer", "kept results"

    def runner(self, region):
        right, kept = Right.runner(self, region), {}

        def run(inputs: Inputs) -> Outputs:
            results = right(inputs)
            for place, value in enumerate(results):
                key = (place, tuple(value.shape), threading.get_ident())
                results[place] = kept.setdefault(key, value).copy_(value)
            return results

        return run


class WritesItsInput(Wrong):
    """Uses an input as scratch memory."""

    name, reason = "writes_its_input", "input writes"

    def wrong(self, inputs, right):
        results = right(inputs)
        inputs[0].data.mul_(0.5)
        return results


class RemembersByAddress(Wrong):
    """Takes equal addresses for equal values."""

    name, reason = "remembers_by_address", "updated inputs"

    def runner(self, region):
        right, known = Right.runner(self, region), {}

        def run(inputs: Inputs) -> Outputs:
            key = tuple(value.data_ptr() for value in inputs)
            # It holds what it has seen: an address of the dead would be another tensor's next.
            known.setdefault(key, ([value.detach() for value in inputs], right(inputs)))
            return [value.clone() for value in known[key][1]]

        return run


class FirstSizes(Wrong):
    """Keeps the sizes of the first call."""

    name, reason = "first_sizes", "other sizes"

    def runner(self, region):
        right, seen = Right.runner(self, region), []

        def run(inputs: Inputs) -> Outputs:
            seen.append(inputs[0].numel())
            results = right(inputs)
            for value in results:
                value.view(-1)[seen[0] :] = 0
            return results

        return run


class LeavesZerosOut(Wrong):
    """Writes what is not zero: fresh memory is, mostly."""

    name, reason = "leaves_zeros_out", "poisoned memory"

    def wrong(self, inputs, right):
        results = []
        for value in right(inputs):
            fresh = torch.empty(value.shape, dtype=value.dtype)
            fresh[value != 0] = value[value != 0]
            results.append(fresh)
        return results


class ReturnsItsInput(Wrong):
    """Copies nothing where nothing is computed."""

    name, reason = "returns_its_input", "aliasing"
    claims = (CLONE, RELU)

    def wrong(self, inputs, right):
        results = right(inputs)
        return [inputs[0]] if results and torch.equal(results[0], inputs[0]) else results


class KeepsItsInputs(Wrong):
    """Keeps what entered."""

    name, reason = "keeps_its_inputs", "kept inputs"

    def __init__(self) -> None:
        self.last: list[Any] = []

    def wrong(self, inputs, right):
        self.last = list(inputs)
        return right(inputs)


class OneScratch(Wrong):
    """All threads compute in one piece of memory."""

    name, reason = "one_scratch", "threads"

    def runner(self, region):
        right, scratch = Right.runner(self, region), {}

        def run(inputs: Inputs) -> Outputs:
            scratch["inputs"] = [value.clone() for value in inputs]
            time.sleep(1e-4)  # as long as a kernel that lets other threads run
            return right(scratch["inputs"])

        return run


class OwnRandomNumbers(Wrong):
    """Draws from a generator of its own."""

    name, reason = "own_random_numbers", "random stream"
    claims = ("aten.bernoulli.default",)
    generator = torch.Generator()

    def traits(self) -> Traits:
        return Traits(keeps_random_stream=True)

    def judge(self, view: OpView) -> Verdict:
        return Supported() if view.op in self.claims else Unsupported("unknown-op")

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def wrong(self, inputs, right):
        return [torch.bernoulli(inputs[0], generator=self.generator)]


class DrawsForNothing(Wrong):
    """Moves torch's generator where eager draws nothing."""

    name, reason = "draws_for_nothing", "random stream"

    def wrong(self, inputs, right):
        torch.rand(1)
        return right(inputs)


class ForgetsToWrite(Wrong):
    """Claims to write inputs, and returns the value alone."""

    name, reason = "forgets_to_write", "values"
    claims = ("aten.copy_.default",)

    def traits(self) -> Traits:
        return Traits(writes_inputs=True)

    def judge(self, view: OpView) -> Verdict:
        return Supported() if view.op in self.claims else Unsupported("unknown-op")

    def wrong(self, inputs, right):
        return right([inputs[0].clone(), *inputs[1:]])


class OnePackedWeight(Right):
    """Packs constants into memory that all bindings share."""

    name, reason = "one_packed_weight", "constants"

    def traits(self) -> Traits:
        return Traits(weights="refit")

    def compile(self, region: Region) -> CompiledRegion:
        right, packed = self.runner(region), {}

        def bind(constants: Sequence[torch.Tensor | None]) -> BoundRun:
            for place, value in enumerate(constants):
                if value is not None:
                    packed.setdefault(place, torch.empty_like(value)).copy_(value)
            return BoundRun(lambda inputs: right([packed.get(place, value) for place, value in enumerate(inputs)]))

        return CompiledRegion(right, bind=bind)


class OtherStrides(Right):
    """Promises row-major results and returns others."""

    name, reason = "other_strides", "form"

    def compile(self, region: Region) -> CompiledRegion:
        right = self.runner(region)

        def run(inputs: Inputs) -> Outputs:
            return [value.t().contiguous().t() if value.dim() == 2 else value for value in right(inputs)]

        return CompiledRegion(run, strides="contiguous")


class CannotCompile(Right):
    """Claims more than it compiles."""

    name, reason = "cannot_compile", "compile"

    def compile(self, region: Region) -> CompiledRegion:
        if any(view.op == EXP for view in region.views):
            raise NotImplementedError("no exponentials")
        return super().compile(region)


class ChangesItsMind(Right):
    """Answers otherwise every other time."""

    name, reason = "changes_its_mind", "verdict"
    count = itertools.count()

    def judge(self, view: OpView) -> Verdict:
        return Supported(cost=1e-6 * next(self.count))

    def __getstate__(self) -> dict[str, Any]:
        return {}


_STORED: dict[bytes, Region] = {}


class StoresAnAddress(Right):
    """Its artifacts mean nothing in another process."""

    name, reason = "stores_an_address", "artifact"

    def compile(self, region: Region) -> CompiledRegion:
        key = str(id(region)).encode()
        _STORED[key] = region
        return CompiledRegion(self.runner(region), artifact=key)

    def load(self, region: Region, artifact: bytes) -> CompiledRegion:
        return CompiledRegion(self.runner(_STORED[artifact]))


class Dies(Wrong):
    """Ends its process."""

    name, reason = "dies", "crash"

    def wrong(self, inputs, right):
        if inputs[0].dtype is torch.float64:
            os.abort()
        return right(inputs)


class Hangs(Wrong):
    """Never returns."""

    name, reason = "hangs", "hang"

    def wrong(self, inputs, right):
        while inputs[0].dtype is torch.float64:
            time.sleep(1)
        return right(inputs)


IN_ONE_PROCESS = (
    *(NarrowNumbers, RepeatsWrongly, NeedsElements, RowMajorOnly, OneBuffer, WritesItsInput, RemembersByAddress),
    *(FirstSizes, LeavesZerosOut, ReturnsItsInput, KeepsItsInputs, OneScratch, OwnRandomNumbers, DrawsForNothing),
    *(ForgetsToWrite, OnePackedWeight, OtherStrides, CannotCompile, ChangesItsMind),
)
NEED_PROCESSES = (StoresAnAddress, Dies, Hangs)
