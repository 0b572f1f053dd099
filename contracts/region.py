"""A region: what a backend compiles, and what it gives back.

Place: cut out of the captured graph by node names of a plan; compiled by the owner; called by the stitched code.
Invariants of a region's graph: functional (no mutation of inputs; random ops only for owners that keep eager's stream
of numbers; ``ops.WRITING`` for owners that declare ``Traits.writes_inputs``, and then no other input shares the
written storage); placeholders are tensors and integers in the order of ``inputs``; it returns a tuple of tensors in the
order of ``outputs``; every node's ``meta["val"]`` holds its fake value; ``view`` never appears, it is written
``reshape``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.fx

from mixbackend.contracts.op_levels import OpLevel
from mixbackend.contracts.ops import InputRole, OpTag, OpView, Phase, ValueMeta
from mixbackend.contracts.sizes import Condition
from mixbackend.contracts.tensors import TensorMeta

LOCAL_KEY = "local-"
"""Start of the keys of regions without canonical text."""


@dataclass(frozen=True, slots=True)
class RegionInput:
    """One value that enters a region.

    Attributes:
        name: of the placeholder.
        meta: tensor meta, or a symbolic or plain number (passed as Python ``int`` or ``float``).
        role: parameters, buffers and constants are told apart from activations.
    """

    name: str
    meta: ValueMeta
    role: InputRole


@dataclass(frozen=True, slots=True)
class RegionOutput:
    """One tensor that leaves a region.

    Attributes:
        name: of the node that computes it.
        meta: expected shape, stride, dtype and device; the strides are what eager would give.
        alias_of: index of the input that it shares storage with in eager; a backend may return fresh storage instead.
        exact_stride: whether a consumer depends on the strides (a graph output, ``as_strided``): then they must be as
            traced where the size is over 1 and the tensor is not empty; otherwise any strides will do.
    """

    name: str
    meta: TensorMeta
    alias_of: int | None = None
    exact_stride: bool = True


@dataclass(frozen=True)
class Region:
    """A piece of a graph, ready to be compiled.

    Attributes:
        id: name in reports, ``inference-0/r3``. Not part of the key: equal regions of different layers share code.
        key: SHA-256 of ``text``; equal keys mean the same computation on the same metas.
        text: canonical text, see ``contracts.region_text``.
        phase: inference, forward or backward.
        graph_module: the executable piece; treat it as read-only and copy before rewriting.
        inputs, outputs: the boundary.
        views: its ops as they were judged, in execution order.
        matches: patterns chosen by the planner, as (pattern, node names inside ``graph_module``).
        sources: user's source lines of its ops, for errors.
        deterministic: whether equal inputs must give bitwise equal results; see ``OpGraph.deterministic``.
        level: of its ops, see ``Traits.level``.
        preconditions: conditions on sizes under which a lowered region means what it meant before; checked before each
            call, eager runs the region where they fail.
    """

    id: str
    key: str
    text: str
    phase: Phase
    graph_module: torch.fx.GraphModule
    inputs: tuple[RegionInput, ...]
    outputs: tuple[RegionOutput, ...]
    views: tuple[OpView, ...]
    matches: tuple[tuple[str, tuple[str, ...]], ...] = ()
    sources: tuple[str, ...] = ()
    deterministic: bool = False
    level: OpLevel = "aten"
    preconditions: tuple[Condition, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether it has no canonical text (subgraphs, lifted tensors): its key means nothing outside this process."""
        return self.key.startswith(LOCAL_KEY)

    @property
    def written(self) -> tuple[int, ...]:
        """Positions of the inputs that its ops write into (through views, too), in order."""
        names = [item.name for item in self.inputs]
        root = {name: name for name in names}
        found = set()
        for view in self.views:
            alias = view.node.aliased()
            if alias is not None:
                root[view.node.name] = root.get(alias, alias)
            if OpTag.MUTATES in view.node.tags and alias is not None:
                found.add(root[view.node.name])
        return tuple(place for place, name in enumerate(names) if name in found)

    @property
    def dynamic(self) -> bool:
        """Whether a tensor on the boundary has a symbolic size."""
        metas = [item.meta for item in self.inputs] + [item.meta for item in self.outputs]
        return any(isinstance(meta, TensorMeta) and meta.dynamic for meta in metas)


@dataclass(frozen=True, slots=True)
class RegionSketch:
    """A region under consideration: what a backend sees when it is asked whether a region is worth taking.

    Attributes:
        views: its ops in execution order.
        inputs, outputs: metas of the tensors on its boundary.
        estimated_s: seconds of the planner's model for this region, entry included.
    """

    views: tuple[OpView, ...]
    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    estimated_s: float


RunFunction = Callable[[Sequence[Any]], Sequence[torch.Tensor]]
"""Takes the inputs in order (tensors and Python numbers) and returns the outputs in order. It must not keep or change
the inputs, but for the values of those in ``Region.written``. Outputs are fresh storage, disjoint from one another,
except where ``RegionOutput.alias_of`` allows."""


@dataclass(frozen=True)
class BoundRun:
    """A region's code with its constants inside.

    Attributes:
        run: see ``RunFunction``; takes the same list of inputs and does not look at those that are constants.
        constant_bytes: memory that it holds on its own for the constants (packed copies, folded weights); tensors
            that it shares with the caller do not count.
        notes: facts for the report, for instance "12 weights packed".
    """

    run: RunFunction
    constant_bytes: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Binding:
    """Code for known values that takes long to make and is worth storing, before it is made.

    Attributes:
        digest: of everything that the code takes from the values: equal digests of one region mean equal code.
        build: makes the code, of the values as they were when this was prepared. May run in any thread, or never.
        load: takes up what ``build`` gave, here or in an earlier process; raises if it is damaged.
    """

    digest: str
    build: Callable[[], bytes]
    load: Callable[[bytes], BoundRun]


PrepareBindingFunction = Callable[[Sequence[torch.Tensor | None]], Binding]
"""Takes what ``BindFunction`` takes, and reads it."""

BindFunction = Callable[[Sequence[torch.Tensor | None]], BoundRun]
"""Takes one entry per region input, the tensor where its role is ``InputRole.CONSTANT`` and ``None`` elsewhere, and
returns code for these very values: packed, folded, or kept inside a session. Called when a graph is built and again
when a constant has changed; each result keeps working while it is referenced. It must not write into the tensors; what
it shares with them instead of copying may be read at any later call. Runs outside torch's dispatch modes and without
gradients. Safe for several threads."""


@dataclass(frozen=True)
class CompiledRegion:
    """What a backend returns from ``compile`` or ``load``.

    Attributes:
        run: see ``RunFunction``. With ``bind`` it is still right for every value of the constants, only slower.
        bind: makes code for known values of the constant inputs; ``None`` if that would win nothing.
        artifact: bytes from which ``load`` rebuilds it in another process; ``None`` if the backend stores nothing.
        source: what was generated or lowered to, for people (C++, ONNX text); ``""`` if there is none.
        preconditions: conditions on sizes under which ``run`` is right; checked by the stitched code before each call,
            eager runs the region where they fail.
        strides: ``as_traced`` (outputs always have the traced strides), ``contiguous`` (row-major), or ``unknown``
            (the stitched code looks at every call).
        notes: facts for the report, for instance "2 attention nodes fused".
        prepare_binding: beside ``bind``, where that takes long: the same in steps, so that what was made for the same
            values before is taken from the artifact store.
    """

    run: RunFunction
    bind: BindFunction | None = None
    artifact: bytes | None = None
    source: str = ""
    preconditions: tuple[Condition, ...] = ()
    strides: Literal["as_traced", "contiguous", "unknown"] = "unknown"
    notes: tuple[str, ...] = ()
    prepare_binding: PrepareBindingFunction | None = None


@dataclass(frozen=True, slots=True)
class RegionConditions:
    """When a backend wants a region at all. "Can run" is a verdict per op, "worth running" is this.

    Attributes:
        minimum_ops: fewer placed ops than this and the region goes elsewhere (views do not count).
        minimum_seconds: less estimated work than this (seconds) and it goes elsewhere.
        must_contain: if not empty, at least one of these op classes or full operator names.
        static_shapes: every size on the boundary and inside must be known.
        phases: phases it serves.
    """

    minimum_ops: int = 1
    minimum_seconds: float = 0.0
    must_contain: frozenset[str] = frozenset()
    static_shapes: bool = False
    phases: frozenset[Phase] = frozenset({"inference", "forward", "backward"})
