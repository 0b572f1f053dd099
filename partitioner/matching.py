"""Finds the places where backends' patterns fit.

Place: after judging. Input: ``Candidates`` and backends. Output: claims; each becomes one more label of its nodes.
A claim is dropped, not repaired, if a value inside it is needed outside (and its part may not escape), if the check
refuses, if a node is quarantined or special for that backend, or if running it as one step would need its own result
(a path leaves the match and comes back).
Invariants: deterministic; claims come in backend order, then pattern order, then graph order.
Non-goals: choosing between overlapping claims: the search does that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from mixbackend.contracts import (
    RESHAPES,
    Any,
    Argument,
    Backend,
    Literal,
    Match,
    NodeRef,
    Op,
    OpNode,
    OpTag,
    OpView,
    Pattern,
    TensorMeta,
)
from mixbackend.contracts.asked import AskedBackend, asked_all
from mixbackend.partitioner.judging import Candidates, refused_by_traits


@dataclass(frozen=True, eq=False)
class Claim:
    """One match that a backend may take as a whole.

    Attributes:
        backend: its position in the user's order.
        match: where.
        cost: seconds of the whole match, ``None`` for the sum over its ops.
        priced_as: an op with the price of the match, where it has no cost.
    """

    backend: int
    match: Match
    cost: float | None
    priced_as: OpView | None = None


@dataclass(frozen=True)
class _Trial:
    """What is matched so far: part by node name, value by name of an ``Any``, nodes passed by either's name."""

    nodes: dict[str, str]
    bindings: dict[str, str]
    passed: dict[str, tuple[str, ...]]


def find_claims(
    candidates: Candidates,
    backends: Sequence[Backend],
    exclusions: frozenset[tuple[str, str]],
    successors: Mapping[str, Sequence[str]],
    replicable: frozenset[str],
    wanted: frozenset[tuple[str, str]] | None = None,
) -> tuple[Claim, ...]:
    """Every place where a pattern of a backend fits.

    Args:
        successors: by node name, the nodes that must run later (data and effect edges).
        replicable: nodes that are copied into their consumers, so that other consumers do not matter.
        wanted: names of backends and their patterns that alone are looked for; ``None`` for all.
    """
    finder = _Finder(candidates, exclusions, successors, replicable)
    claims: list[Claim] = []
    for slot, backend in enumerate(asked_all(backends)):
        for pattern in backend.patterns():
            if wanted is None or (backend.name, pattern.name) in wanted:
                claims += finder.claims(slot, backend, pattern)
    return tuple(claims)


class _Finder:
    def __init__(
        self,
        candidates: Candidates,
        exclusions: frozenset[tuple[str, str]],
        successors: Mapping[str, Sequence[str]],
        replicable: frozenset[str],
    ) -> None:
        self._candidates = candidates
        self._graph = candidates.graph
        self._exclusions = exclusions
        self._successors = successors
        self._replicable = replicable
        self._position = {node.name: index for index, node in enumerate(self._graph.placed_nodes)}
        self._names_by_op: dict[str, list[str]] = {}
        for node in self._graph.placed_nodes:
            self._names_by_op.setdefault(node.op, []).append(node.name)
        self._returned = frozenset(name for name in self._graph.outputs if name is not None)

    def claims(self, slot: int, backend: AskedBackend, pattern: Pattern) -> list[Claim]:
        found: list[Claim] = []
        roots = {name for op in pattern.root.ops for name in self._names_by_op.get(op, ())}
        for root in sorted(roots, key=self._position.__getitem__):
            trials = self._match_op(pattern.root, root, _Trial({}, {}, {}))
            claims = (self._claim(slot, backend, pattern, trial) for trial in trials)
            found += islice(filter(None, claims), 1)
        return found

    def _match_op(self, pattern: Op, name: str, trial: _Trial) -> Iterator[_Trial]:
        """Every way in which a tree fits a node; what is commutative is tried as it is written first.

        There are at most two ways per commutative op of the pattern.
        """
        passed, name = self._behind(pattern, name)
        node = self._graph.node_by_name.get(name)
        if node is None or node.op not in pattern.ops or name not in self._position:
            return
        if pattern.part and trial.nodes.get(name) == pattern.part:
            yield from [trial] if trial.passed[pattern.part] == passed else []
            return
        part = pattern.part or f"#{len(trial.nodes)}"
        if part in trial.nodes.values() or any(other in trial.nodes for other in (name, *passed)):
            return
        values = [value for _, value in node.arguments]
        if len(values) < len(pattern.operands):
            return
        nodes = {**trial.nodes, name: part, **{other: f"#{other}" for other in passed}}
        started = _Trial(nodes, trial.bindings, {**trial.passed, part: passed})
        orders = [pattern.operands]
        if pattern.commutative and len(pattern.operands) >= 2:
            first, second, *rest = pattern.operands
            orders.append((second, first, *rest))
        for operands in orders:
            yield from self._match_operands(operands, values, started)

    def _behind(self, pattern: Op, name: str) -> tuple[tuple[str, ...], str]:
        """The ops that a value went through, nearest first, and the node that they started from."""
        passed: list[str] = []
        while (pattern.reshaped or pattern.behind) and name in self._position:
            node = self._graph.node_by_name[name]
            reshape = pattern.reshaped and node.op in RESHAPES
            if node.op in pattern.ops or not (reshape or self._keeps_elements(node, pattern.behind)):
                break
            passed.append(name)
            name = node.references()[0]
        return tuple(passed), name

    def _keeps_elements(self, node: OpNode, allowed: Sequence[str]) -> bool:
        """Whether an op is one of these, on one tensor, and keeps all of its elements in row-major order."""
        if node.op not in allowed:
            return False
        metas = {name: self._graph.value(name).meta for name in node.references()}
        if sum(isinstance(meta, TensorMeta) for meta in metas.values()) != 1:
            return False
        if OpTag.VIEW not in node.tags or node.op in RESHAPES:
            return True
        return metas[node.references()[0]] == node.outputs[0]

    def _in_front(self, pattern: Any, name: str, trial: _Trial) -> tuple[tuple[str, ...], str]:
        """The ops that a bound value went through and nothing else needs, nearest first, and the value."""
        passed: list[str] = []
        last = 0
        while pattern.behind and name in self._position and name not in trial.nodes:
            node = self._graph.node_by_name[name]
            inside = trial.nodes.keys() | set(passed)
            if not self._keeps_elements(node, pattern.behind) or self._escapes(name, inside):
                break
            passed.append(name)
            last = last if OpTag.VIEW in node.tags else len(passed)
            name = node.references()[0]
        source = passed[last] if last < len(passed) else name
        return tuple(passed[:last]), source

    def _match_operands(
        self, operands: Sequence[Op | Any | Literal], values: Sequence[Argument], trial: _Trial
    ) -> Iterator[_Trial]:
        """Every way in which operands fit values in this order; each way of the first with each of the others."""
        if not operands:
            yield trial
            return
        for started in self._match_operand(operands[0], values[0], trial):
            yield from self._match_operands(operands[1:], values[1:], started)

    def _match_operand(self, pattern: Op | Any | Literal, value: Argument, trial: _Trial) -> Iterator[_Trial]:
        if isinstance(pattern, Literal):
            same = type(value) is type(pattern.value) and value == pattern.value
            yield from [trial] if same else []
        elif isinstance(value, NodeRef) and isinstance(pattern, Op):
            yield from self._match_op(pattern, value.name, trial)
        elif isinstance(value, NodeRef) and isinstance(pattern, Any):
            yield from self._bind(pattern, value.name, trial)

    def _bind(self, pattern: Any, name: str, trial: _Trial) -> Iterator[_Trial]:
        """A tensor as the value of a name; a number is none."""
        passed, name = self._in_front(pattern, name, trial)
        if trial.bindings.get(pattern.name, name) != name or not isinstance(self._graph.value(name).meta, TensorMeta):
            return
        nodes = {**trial.nodes, **{other: f"#{other}" for other in passed}}
        behind = {**trial.passed, pattern.name: passed} if passed else trial.passed
        yield _Trial(nodes, {**trial.bindings, pattern.name: name}, behind)

    def _claim(self, slot: int, backend: AskedBackend, pattern: Pattern, trial: _Trial) -> Claim | None:
        names = sorted(trial.nodes, key=self._position.__getitem__)
        views = self._candidates.views
        if any((name, backend.name) in self._exclusions for name in names):
            return None
        if any(refused_by_traits(backend, views[name]) is not None for name in names):
            return None
        escaping = [name for name in names[:-1] if self._escapes(name, trial.nodes.keys())]
        if any(trial.nodes[name] not in pattern.may_escape for name in escaping) or self._leaves_and_returns(names):
            return None
        match = Match(
            pattern=pattern.name,
            nodes=tuple(names),
            parts=tuple((part, views[name]) for name, part in trial.nodes.items() if not part.startswith("#")),
            bindings=tuple(trial.bindings.items()),
            passed=tuple(
                (part, tuple(views[other] for other in passed))
                for part, passed in trial.passed.items()
                if passed and not part.startswith("#")
            ),
        )
        claimed = backend.claim(pattern, match)
        return None if claimed is None else Claim(slot, match, claimed.cost, claimed.priced_as)

    def _escapes(self, name: str, inside: Collection[str]) -> bool:
        if name in self._replicable:
            return False
        outside = any(consumer not in inside for consumer in self._graph.consumers[name])
        return outside or name in self._returned

    def _leaves_and_returns(self, names: list[str]) -> bool:
        inside, last = set(names), self._position[names[-1]]
        frontier = [later for name in names for later in self._successors.get(name, ()) if later not in inside]
        seen: set[str] = set()
        while frontier:
            name = frontier.pop()
            if name in inside:
                return True
            if name in seen or self._position[name] > last:
                continue
            seen.add(name)
            frontier += self._successors.get(name, ())
        return False
