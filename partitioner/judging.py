"""Judging: which backend can run which op, and why not.

Place: first step of the partitioner. Input: an ``OpGraph`` and backends. Output: ``Candidates``, a frozen value.
Backends are asked through the contract only; what their traits and conditions already exclude is refused before they
are asked, and identical ops are asked about once.
Invariants: every (node, backend) pair has a verdict; a backend that raises has refused with ``backend-error``.
Non-goals: costs and preferences, which later steps add.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from mixbackend.contracts import (
    WRITING,
    Backend,
    OpGraph,
    OpNode,
    OpTag,
    OpView,
    Refusal,
    Supported,
    TensorMeta,
    Unsupported,
    Verdict,
)
from mixbackend.contracts.asked import AskedBackend, asked_all
from mixbackend.partitioner.signatures import MetaNumbers, signature_of

GETITEM = "getitem"
_EFFECTS = (
    (OpTag.HIGHER_ORDER, "higher-order", "carries subgraphs"),
    (OpTag.MUTATES, "effect", "writes into an input"),
    (OpTag.COLLECTIVE, "effect", "is a collective"),
    (OpTag.EFFECT, "effect", "has a side effect"),
    (OpTag.UNINITIALIZED, "effect", "returns uninitialised memory"),
)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Verdicts on every placed node.

    Attributes:
        graph: what was judged.
        backends: names, in the user's order.
        verdicts: by node name, one verdict per backend.
        views: by node name.
        signatures: by node name; equal signatures are the same question.
    """

    graph: OpGraph
    backends: tuple[str, ...]
    verdicts: dict[str, tuple[Verdict, ...]]
    views: dict[str, OpView]
    signatures: dict[str, Hashable]

    def supporters(self, name: str) -> int:
        """Bit mask of the backends that can run a node."""
        return sum(1 << slot for slot, verdict in enumerate(self.verdicts[name]) if isinstance(verdict, Supported))

    def refusals(self) -> tuple[Refusal, ...]:
        """Every refused pair, in node order, then backend order."""
        return tuple(
            Refusal(node.name, backend, verdict.code, verdict.detail)
            for node in self.graph.placed_nodes
            for backend, verdict in zip(self.backends, self.verdicts[node.name], strict=True)
            if isinstance(verdict, Unsupported)
        )

    def __str__(self) -> str:
        lines = [f"candidates of {self.graph.id}: backends {', '.join(self.backends)}"]
        for name, verdicts in self.verdicts.items():
            answers = zip(self.backends, verdicts, strict=True)
            lines.append(f"  %{name}: " + ", ".join(f"{backend} {_short(verdict)}" for backend, verdict in answers))
        return "\n".join(lines)


def _short(verdict: Verdict) -> str:
    if isinstance(verdict, Unsupported):
        return f"no ({verdict.code})"
    return "yes" if verdict.cost is None else f"yes ({verdict.cost:.3e} s)"


def judge(
    graph: OpGraph,
    backends: Sequence[Backend],
    exclusions: frozenset[tuple[str, str]],
    lifted: frozenset[tuple[str, str]] = frozenset(),
) -> Candidates:
    """Ask every backend about every placed node.

    Args:
        exclusions: quarantined (node, backend) pairs.
        lifted: (node, backend) pairs that count as supported whatever the backend says: for counterfactuals.
    """
    asked = asked_all(backends)
    number_of = MetaNumbers()
    verdicts: dict[str, tuple[Verdict, ...]] = {}
    views: dict[str, OpView] = {}
    signatures: dict[str, Hashable] = {}
    answered: dict[Hashable, tuple[Verdict, ...]] = {}
    for node in graph.placed_nodes:
        view = views[node.name] = graph.view(node.name)
        signature = signatures[node.name] = _interned(signature_of(view, number_of))
        source = source_of_getitem(node)
        if source in verdicts:
            verdicts[node.name] = verdicts[source]
            continue
        if signature not in answered:
            answered[signature] = tuple(_ask(backend, view) for backend in asked)
        verdicts[node.name] = answered[signature]
    candidates = Candidates(graph, tuple(backend.name for backend in backends), verdicts, views, signatures)
    candidates = _lift(candidates, lifted) if lifted else candidates
    return _quarantine(candidates, exclusions) if exclusions else candidates


class _Key:
    """A signature that is hashed once."""

    __slots__ = ("hash", "value")

    def __init__(self, value: Hashable) -> None:
        self.value = value
        self.hash = hash(value)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and (self is other or self.value == other.value)


def _interned(value: Hashable) -> Hashable:
    return _Key(value)


def source_of_getitem(node: OpNode) -> str:
    """Name of the node that a ``getitem`` takes an output of, ``""`` for other nodes."""
    if node.op != GETITEM:
        return ""
    references = node.references()
    return references[0] if references else ""


def _quarantine(candidates: Candidates, exclusions: frozenset[tuple[str, str]]) -> Candidates:
    banned = set(exclusions)
    for node in reversed(candidates.graph.placed_nodes):
        source = source_of_getitem(node)
        if source:
            banned |= {(source, backend) for backend in candidates.backends if (node.name, backend) in banned}
    failed = Unsupported("quarantined", "failed, or gave wrong numbers, on a region with this op")

    def answer(pair: tuple[str, str], verdict: Verdict) -> Verdict:
        return failed if pair in banned and isinstance(verdict, Supported) else verdict

    return _answered_anew(candidates, answer)


def _lift(candidates: Candidates, lifted: frozenset[tuple[str, str]]) -> Candidates:
    def answer(pair: tuple[str, str], verdict: Verdict) -> Verdict:
        return Supported() if pair in lifted and isinstance(verdict, Unsupported) else verdict

    return _answered_anew(candidates, answer)


def _answered_anew(candidates: Candidates, answer: Callable[[tuple[str, str], Verdict], Verdict]) -> Candidates:
    """Candidates with other verdicts, by (node, backend) and the present one; a ``getitem`` shares its source's."""
    verdicts: dict[str, tuple[Verdict, ...]] = {}
    for node in candidates.graph.placed_nodes:
        source = source_of_getitem(node)
        if source in verdicts:
            verdicts[node.name] = verdicts[source]
            continue
        pairs = zip(candidates.backends, candidates.verdicts[node.name], strict=True)
        verdicts[node.name] = tuple(answer((node.name, backend), verdict) for backend, verdict in pairs)
    return replace(candidates, verdicts=verdicts)


def _ask(backend: AskedBackend, view: OpView) -> Verdict:
    refusal = refused_by_traits(backend, view)
    return backend.judge(view) if refusal is None else refusal


def refused_by_traits(backend: AskedBackend, view: OpView) -> Unsupported | None:
    """The refusal that follows from what a backend declares about itself; ``None`` if it must be asked."""
    traits, conditions, tags = backend.traits(), backend.conditions(), view.node.tags
    if view.phase not in conditions.phases:
        return Unsupported("phase", f"{view.phase}, serves {', '.join(sorted(conditions.phases))}")
    if view.deterministic and not (traits.deterministic or traits.reference):
        return Unsupported(
            "deterministic", "its results may differ in bits, and deterministic algorithms are asked for"
        )
    if OpTag.RANDOM in tags and not traits.keeps_random_stream:
        return Unsupported("random", f"{view.op} draws from torch's random stream")
    if tags and not traits.takes_effects:
        writes = traits.writes_inputs and view.op in WRITING
        granted = {OpTag.MUTATES} if writes else set()
        granted |= {OpTag.HIGHER_ORDER} if view.op in traits.takes_whole else set()
        for tag, code, detail in _EFFECTS:
            if tag in tags and tag not in granted:
                return Unsupported(code, f"{view.op} {detail}")  # type: ignore[arg-type]
    for meta in (*view.input_tensors, *view.output_tensors):
        if meta.device.type not in traits.device_types:
            return Unsupported("device", f"{meta} is not on {', '.join(sorted(traits.device_types))}")
        if conditions.static_shapes and isinstance(meta, TensorMeta) and meta.dynamic:
            return Unsupported("dynamic-shape", f"{meta} has symbolic sizes")
    return None
