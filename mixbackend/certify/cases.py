"""Cases: a sample cut into single claims, each a region with the values that it was given.

Place: above samples, below the properties. Input: a sample, a backend. Output: a ``Case`` for each op of the sample,
for each pattern of the backend that fits, and for the whole sample where it is one; refused ones with the refusal.
Invariants: the same cases in the same order in every process; values of a case are its own; the questions to the
backend are the planner's: what its traits rule out is refused before it is asked.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.fx

from mixbackend.certify.samples import Sample
from mixbackend.contracts import (
    WRITING,
    InputRole,
    Match,
    NodeRef,
    OpGraph,
    OpTag,
    OpView,
    Plan,
    PlannedRegion,
    Region,
    Unsupported,
    dependencies,
    format_argument,
    hint_of,
)
from mixbackend.contracts.asked import AskedBackend
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.regions import BoundRegion, cut_regions, whole_region
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.judging import Candidates, judge, source_of_getitem
from mixbackend.partitioner.matching import find_claims

ZERO_SIZE, BROADCAST, GAPS, CONSTANTS = "zero-size", "broadcast", "gaps", "constants"
"""Features that a property is named after."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a backend says that it can run: the unit of a certificate.

    Attributes:
        op: full name of an operator, ``pattern NAME``, or ``region NAME`` of a whole sample.
        dtypes: element types of all tensors that it reads and makes, in order of their names.
        sizes: ``static`` or ``dynamic``.
        phase: see ``contracts.Phase``.
    """

    op: str
    dtypes: str
    sizes: str
    phase: str

    def __str__(self) -> str:
        return f"{self.op} {self.dtypes} {self.sizes} {self.phase}"


@dataclass(frozen=True, eq=False)
class Case:
    """One region that shows a claim; it is cut out of its sample when it is first asked for.

    Attributes:
        claim: what it shows.
        features: what makes it unlike other cases of the claim.
        refusal: the backend's, ``None`` where it claims the region.
        sample: name of the sample that it is of.
        digest: equal for cases that ask the same of a backend, in every process.
        cut: makes the region, and the values of one call.
    """

    claim: Claim
    features: frozenset[str]
    refusal: Unsupported | None
    sample: str
    digest: str
    cut: Callable[[], Cut]

    @property
    def region(self) -> Region:
        """What the backend is to compile."""
        return self._made[0]

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Of one call; integers for numbers."""
        return self._made[1]

    @cached_property
    def _made(self) -> Cut:
        return self.cut()


Cut = tuple[Region, tuple[Any, ...]]


def cases_of(sample: Sample, backend: AskedBackend) -> list[Case]:
    """Everything that a sample asks of a backend.

    Raises:
        Exception: whatever torch raises while it traces the sample: it is none.
    """
    constant = PlaceholderRole(InputRole.CONSTANT)
    graph_module, graph = trace_graph(
        sample.function,
        sample.inputs,
        dynamic=sample.dynamic,
        phase=sample.phase,
        graph_id=sample.name.replace(" ", "-"),
        roles=dict.fromkeys(sample.weights, constant),
    )
    candidates = judge(graph, [backend], frozenset())
    cutter = _Cutter(sample, graph_module, candidates)
    found = [*cutter.single(), *cutter.patterns(backend)]
    return [*found, *cutter.whole(found)] if sample.whole else found


class Recorder(torch.fx.Interpreter):
    """Keeps a copy of every value as it was when it was made."""

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        super().__init__(graph_module)
        self.seen: dict[str, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        self.seen[n.name] = copy_of(value)
        return value


def copy_of(value: Any) -> Any:
    """A tensor's values in memory of their own, laid out as before; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    plain = value.detach().resolve_conj().resolve_neg()
    storage = plain.untyped_storage().clone()
    copy = torch.empty(0, dtype=plain.dtype, device=plain.device)
    return copy.set_(storage, plain.storage_offset(), plain.size(), plain.stride())


class _Cutter:
    def __init__(self, sample: Sample, graph_module: torch.fx.GraphModule, candidates: Candidates) -> None:
        self._sample, self._module, self._candidates = sample, graph_module, candidates
        self._graph: OpGraph = candidates.graph
        self._groups = groups_of(self._graph)

    def single(self) -> Iterator[Case]:
        """A case for each op, with what takes its results apart."""
        for place, names in enumerate(self._groups):
            (verdict,) = self._candidates.verdicts[names[0]]
            refusal = verdict if isinstance(verdict, Unsupported) else None
            op = self._graph.node_by_name[names[0]].op
            if any(map(_is_outside, (self._candidates.views[name] for name in names))):
                continue
            yield self._case(op, names, refusal, partial(self._cut_group, place))

    def patterns(self, backend: AskedBackend) -> Iterator[Case]:
        """A case for each place where a pattern of the backend fits."""
        if not backend.patterns():
            return
        successors: dict[str, list[str]] = {node.name: [] for node in self._graph.placed_nodes}
        for first, second in dependencies(self._graph):
            successors[first].append(second)
        for claim in find_claims(self._candidates, [backend], frozenset(), successors, frozenset()):
            match = claim.match
            yield self._case(f"pattern {match.pattern}", match.nodes, None, partial(self._cut_match, match))

    def whole(self, parts: Sequence[Case]) -> Iterator[Case]:
        """The sample as one region; refused where an op of it is."""
        refusal = next((case.refusal for case in parts if case.refusal is not None), None)
        names = tuple(node.name for node in self._graph.placed_nodes)
        yield self._case(f"region {self._sample.name}", names, refusal, self._cut_whole)

    @cached_property
    def _values(self) -> dict[str, Any]:
        recorder = Recorder(self._module)
        with torch.no_grad(), torch.random.fork_rng([]):
            torch.default_generator.manual_seed(0)
            recorder.run(*map(copy_of, self._sample.inputs))  # a sample may write into its inputs
        return recorder.seen

    @cached_property
    def _pieces(self) -> Sequence[BoundRegion]:
        regions = (PlannedRegion(f"r{place}", "none", names) for place, names in enumerate(self._groups))
        return self._bound(tuple(regions))

    def _cut_group(self, place: int) -> Cut:
        piece = self._pieces[place]
        return piece.region, self._given(piece.inputs)

    def _cut_match(self, match: Match) -> Cut:
        own = set(match.nodes)
        others = (names for names in self._groups if not own & set(names))
        regions = [PlannedRegion("match", "none", match.nodes, matches=((match.pattern, match.nodes),))]
        regions += [PlannedRegion(f"r{place}", "none", names) for place, names in enumerate(others)]
        (piece,) = [item for item in self._bound(tuple(regions)) if item.planned.id == "match"]
        return piece.region, self._given(piece.inputs)

    def _cut_whole(self) -> Cut:
        region = whole_region(self._module, self._graph)
        return region, self._given([item.name for item in region.inputs])

    def _bound(self, regions: tuple[PlannedRegion, ...]) -> Sequence[BoundRegion]:
        plan = Plan(self._graph.id, self._graph.phase, self._graph.dynamic, regions)
        return cut_regions(self._module, self._graph, plan, views_inside=True)

    def _given(self, names: Sequence[str]) -> tuple[Any, ...]:
        return tuple(copy_of(self._values[name]) for name in names)

    def _case(self, op: str, names: Sequence[str], refusal: Unsupported | None, cut: Callable[[], Cut]) -> Case:
        views = [self._candidates.views[name] for name in names]
        claim = Claim(op, _dtypes(views), "dynamic" if self._sample.dynamic else "static", self._sample.phase)
        digest = hashlib.sha256(f"{claim} {_text_of(views)}".encode()).hexdigest()[:16]
        return Case(claim, _features(views), refusal, self._sample.name, digest, cut)


def _is_outside(view: OpView) -> bool:
    """Whether no region of captured graphs holds such an op, but for eager's own: other writes than those of the
    contract, sparse tensors, messages between processes."""
    tags = view.node.tags
    return bool(tags & {OpTag.EFFECT, OpTag.COLLECTIVE}) or (OpTag.MUTATES in tags and view.op not in WRITING)


def groups_of(graph: OpGraph) -> list[tuple[str, ...]]:
    """Placed nodes, each with those that take its results apart."""
    groups: dict[str, list[str]] = {}
    for node in graph.placed_nodes:
        source = source_of_getitem(node)
        groups.setdefault(source if source in groups else node.name, []).append(node.name)
    return [tuple(names) for names in groups.values()]


def _dtypes(views: Sequence[OpView]) -> str:
    metas = [meta for view in views for meta in (*view.input_tensors, *view.output_tensors)]
    return ",".join(sorted({str(meta.dtype).removeprefix("torch.") for meta in metas}))


def _features(views: Sequence[OpView]) -> frozenset[str]:
    given = [meta for view in views for meta in view.input_tensors]
    metas = [*given, *(meta for view in views for meta in view.output_tensors)]
    found = {f"rank {meta.rank}" for meta in given}
    found |= {ZERO_SIZE} if any(hint_of(size) == 0 for meta in metas for size in meta.shape) else set()
    found |= {GAPS} if any(not meta.contiguous() for meta in given) else set()
    found |= {BROADCAST} if any(map(_broadcasts, views)) else set()
    found |= {CONSTANTS} if any(item.role is InputRole.CONSTANT for view in views for item in view.inputs) else set()
    return frozenset(found | {f"arguments {said}" for said in map(_said, views) if said})


def _broadcasts(view: OpView) -> bool:
    shapes = {tuple(map(hint_of, meta.shape)) for meta in view.input_tensors}
    return view.op_class == "pointwise" and len(shapes) > 1


def _said(view: OpView) -> str:
    """What is said beside tensors, as text."""
    named = view.node.arguments
    return " ".join(f"{name}={format_argument(value)}" for name, value in named if not isinstance(value, NodeRef))


_SYMBOL = re.compile(r"\b[su]\d+\b")


def _text_of(views: Sequence[OpView]) -> str:
    """Ops with all that they read, where names and symbols are numbered as they appear."""
    values: dict[str, str] = {}
    lines = []
    for view in views:
        for item in view.inputs:
            values.setdefault(item.name, f"%v{len(values)}")
        reads = "; ".join(f"{values[item.name]} {item.meta} {item.role.value}" for item in view.inputs)
        said = _said(view)
        for name, known in values.items():
            said = re.sub(rf"%{re.escape(name)}\b", known, said)
        order = " ".join(values[name] for name in view.node.references())
        values[view.node.name] = f"%v{len(values)}"
        lines.append(f"{view.op}({order} {said}) {reads}")
    symbols: dict[str, str] = {}
    return _SYMBOL.sub(lambda found: symbols.setdefault(found.group(), f"z{len(symbols)}"), "\n".join(lines))
