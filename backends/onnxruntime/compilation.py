"""Compile and load: a region becomes a model, and a model becomes sessions.

Place: behind ``OnnxRuntimeBackend.compile`` and ``load``; the only modules that import the runtime are below this one.
Input: a region, or a region and the bytes of its model. Output: ``CompiledRegion``.
Invariants: a region with constants has two kinds of sessions: one with every weight an input, opened when it is first
run unbound, and one per ``bind``, in which constants are initialisers. Neither waits for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import onnx
import torch

from mixbackend.backends.common import forks
from mixbackend.backends.common.onnx import lower_region
from mixbackend.backends.onnxruntime.binding import bind_model
from mixbackend.backends.onnxruntime.boundary import Entrance, Exit, boundary
from mixbackend.backends.onnxruntime.kernels import TARGET
from mixbackend.backends.onnxruntime.session import Run, open_session, runner
from mixbackend.contracts import BoundRun, CompiledRegion, Condition, Region, Size, SymbolicSize, TensorMeta

_LONGEST_TEXT = 200_000


def compile_region(region: Region) -> CompiledRegion:
    """Lower a region; a session is opened for it at once unless its constants are to be bound.

    Raises:
        LoweringError: the region has no ONNX form although its ops were claimed.
        Exception: the runtime refuses the model.
    """
    model = lower_region(region, TARGET).model
    return _compiled(region, model, model.SerializeToString())


def load_region(region: Region, artifact: bytes) -> CompiledRegion:
    """Take up a stored model.

    Raises:
        ValueError: the model is not one of this region.
        Exception: the bytes are no model, or the runtime refuses it.
    """
    return _compiled(region, onnx.load_model_from_string(artifact), artifact)


def _compiled(region: Region, model: onnx.ModelProto, serialised: bytes) -> CompiledRegion:
    entrances, exits = boundary(region, model)
    opener = _Opener(serialised, entrances, exits, static=not region.dynamic, doubles=_has_doubles(region))
    binds = any(item.kind == "constant" for item in entrances)
    return CompiledRegion(
        run=_Late(opener.open_live) if binds else opener.open_live(),
        bind=opener.open_bound if binds else None,
        artifact=serialised,
        source=_readable(model),
        preconditions=_preconditions(region),
        strides="contiguous",
    )


class _Opener:
    """Opens sessions for one model."""

    def __init__(
        self, serialised: bytes, entrances: Sequence[Entrance], exits: Sequence[Exit], *, static: bool, doubles: bool
    ) -> None:
        self._serialised = serialised
        self._entrances = entrances
        self._exits = exits
        self._open = partial(open_session, static=static, doubles=doubles)

    def open_live(self) -> Run:
        """With every weight an input."""
        return runner(self._open(self._serialised), self._entrances, self._exits)

    def open_bound(self, constants: Sequence[torch.Tensor | None]) -> BoundRun:
        """With the constants as initialisers; see ``BindFunction``."""
        bound = bind_model(self._serialised, self._entrances, constants)
        session = self._open(bound.serialised, names=bound.names, values=bound.values)
        run = runner(session, self._entrances, self._exits, bound=bound.values)
        notes = (f"{bound.packed} constants packed",) if bound.packed else ()
        return BoundRun(run, bound.copied_bytes, notes)


class _Late:
    """A run with a session that its first call opens: where constants are bound, it may never be called."""

    def __init__(self, opening: Any) -> None:
        self._opening = opening
        self._lock = forks.long_lock()
        self._run: Run | None = None

    def __call__(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        run = self._run
        if run is None:
            with self._lock:
                run = self._run = self._run or self._opening()
        return run(arguments)


def _has_doubles(region: Region) -> bool:
    metas = (meta for view in region.views for meta in view.output_tensors)
    return any(meta.dtype is torch.float64 for meta in metas)


def _preconditions(region: Region) -> tuple[Condition, ...]:
    """The runtime's kernels are not held against empty tensors: sizes that may be zero are checked at each call."""
    found: dict[Size, None] = {}
    for item in region.inputs:
        for size in item.meta.shape if isinstance(item.meta, TensorMeta) else ():
            if isinstance(size, SymbolicSize) and size.lower < 1:
                found[size] = None
    return tuple(Condition(size, "at_least", 1) for size in found)


def _readable(model: onnx.ModelProto) -> str:
    text = onnx.printer.to_text(model)
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[:_LONGEST_TEXT]}\n# {len(text) - _LONGEST_TEXT} more characters\n"
