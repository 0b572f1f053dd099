"""Pricing: from verdicts to a ``Problem``.

Place: after gluing, before the search; the only step that asks the cost model.
Input: the rules of the user as verdicts, atoms, claims, backends, a cost model. Output: ``Problem``.
A backend's own cost of an op (in its verdict, or of a pattern) comes before the cost model's.
Raises ``PlacementError`` if atoms can run nowhere: all of them, each with every backend's refusal.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cache, partial

from mixbackend.contracts import (
    Backend,
    CostModel,
    InputRole,
    OpNode,
    OpView,
    PlacementError,
    Supported,
    TensorMeta,
    Unsupported,
    dependencies,
)
from mixbackend.partitioner.atoms import Atoms, is_free
from mixbackend.partitioner.matching import Claim
from mixbackend.partitioner.problem import Label, Problem, Use, Value
from mixbackend.partitioner.signatures import MetaNumbers
from mixbackend.partitioner.user_rules import UserRules

_NAMED = 8
"""So many equal ops that run nowhere are named."""


def price(
    user_rules: UserRules,
    atoms: Atoms,
    claims: Sequence[Claim],
    backends: Sequence[Backend],
    costs: CostModel,
    corrections: Mapping[tuple[str, str], float],
) -> Problem:
    """Put a price on everything a plan could do; corrections are seconds by (node, backend), see ``place``."""
    builder = _Builder(user_rules, atoms, claims, backends, _Tariff(backends, costs), corrections)
    return builder.build()


class _Tariff:
    """The cost model, asked once per different question."""

    def __init__(self, backends: Sequence[Backend], costs: CostModel) -> None:
        self._names = [backend.name for backend in backends]
        self._row_major = [backend.traits().row_major for backend in backends]
        self.pools = tuple(backend.traits().thread_pool for backend in backends)
        self._costs = costs
        self._number_of = MetaNumbers()
        self._reads: dict[int, tuple[float, ...]] = {}
        self._weights: dict[int, tuple[float, ...]] = {}
        self._writes: dict[int, tuple[float, ...]] = {}
        self._crossings: dict[int, tuple[tuple[float, ...], ...]] = {}
        self._ops: dict[tuple[int, Hashable], float] = {}
        self._bytes: dict[int, int] = {}
        self.nothing = (0.0,) * len(self._names)

    def reads(self, meta: TensorMeta) -> tuple[float, ...]:
        number = self._number_of(meta)
        if number not in self._reads:
            self._reads[number] = tuple(self._costs.read(name, meta) for name in self._names)
        return self._reads[number]

    def weights(self, meta: TensorMeta) -> tuple[float, ...]:
        key = self._number_of(meta)
        if key not in self._weights:
            self._weights[key] = tuple(self._costs.weight(name, meta) for name in self._names)
        return self._weights[key]

    def writes(self, meta: TensorMeta) -> tuple[float, ...]:
        number = self._number_of(meta)
        if number not in self._writes:
            self._writes[number] = tuple(self._costs.write(name, meta) for name in self._names)
        return self._writes[number]

    def crossings(self, meta: TensorMeta) -> tuple[tuple[float, ...], ...]:
        number = self._number_of(meta)
        if number not in self._crossings:
            slots = range(len(self._names))
            self._crossings[number] = tuple(tuple(self._crossing(a, b, meta) for b in slots) for a in slots)
        return self._crossings[number]

    def _crossing(self, producer: int, consumer: int, meta: TensorMeta) -> float:
        if producer == consumer:
            return 0.0
        seconds = self._costs.crossing(self._names[producer], self._names[consumer], meta)
        if self._row_major[producer] == self._row_major[consumer]:
            return seconds
        return seconds + self.entering(producer if self._row_major[producer] else consumer, meta)

    def entering(self, slot: int, meta: TensorMeta) -> float:
        """Seconds of the copy that a value in another layout needs on the border of a row-major backend."""
        if not self._row_major[slot] or meta.contiguous():
            return 0.0
        return self.reads(meta)[slot] + self.writes(meta)[slot]

    def op(self, slot: int, user_rules: UserRules, name: str) -> float:
        key = (slot, user_rules.candidates.signatures[name])
        if key not in self._ops:
            self._ops[key] = self._costs.op(self._names[slot], user_rules.candidates.views[name]).seconds
        return self._ops[key]

    def equal(self, slot: int, view: OpView) -> float:
        """Seconds of an op that is not in the graph."""
        return self._costs.op(self._names[slot], view).seconds

    def entries(self) -> tuple[float, ...]:
        return tuple(map(sum, zip(map(self._costs.entry, self._names), self.switches(), strict=True)))

    def switches(self) -> tuple[float, ...]:
        return tuple(map(self._costs.switch, self._names))

    def smaller(self, first: TensorMeta, second: TensorMeta) -> TensorMeta:
        return first if self._size(first) <= self._size(second) else second

    def _size(self, meta: TensorMeta) -> int:
        number = self._number_of(meta)
        if number not in self._bytes:
            self._bytes[number] = meta.bytes()
        return self._bytes[number]


class _Builder:
    def __init__(
        self,
        user_rules: UserRules,
        atoms: Atoms,
        claims: Sequence[Claim],
        backends: Sequence[Backend],
        tariff: _Tariff,
        corrections: Mapping[tuple[str, str], float],
    ) -> None:
        self._corrections = corrections
        self._user_rules = user_rules
        self._candidates = user_rules.candidates
        self._graph = user_rules.candidates.graph
        self._atoms = atoms
        self._tariff = tariff
        self._fused = [backend.traits().fused_on(self._graph.device_type) for backend in backends]
        self._fused_bits: dict[tuple[str, str], int] = {}
        self._reads: dict[str, dict[str, TensorMeta]] = {}
        self._claims = tuple(claim for claim in claims if self._usable(claim))
        self._whole_costs = tuple(map(self._whole_cost, self._claims))
        self._claims_of: list[list[int]] = [[] for _ in atoms.cores]
        for number, claim in enumerate(self._claims):
            for atom in dict.fromkeys(self._claimed_atoms(claim)):
                self._claims_of[atom].append(number)

    def build(self) -> Problem:
        labels: list[tuple[Label, ...]] = []
        costs: list[tuple[float, ...]] = []
        ops: list[tuple[float, ...]] = []
        homeless: list[str] = []
        for atom, core in enumerate(self._atoms.cores):
            choices = self._labels(atom)
            if not choices:
                homeless.append(core)
            labels.append(tuple(choices))
            costs.append(tuple(op + inputs for op, inputs in choices.values()))
            ops.append(tuple(op for op, _ in choices.values()))
        if homeless:
            raise self._nowhere(homeless)
        return Problem(
            graph=self._graph,
            candidates=self._candidates,
            atoms=self._atoms,
            claims=self._claims,
            backends=self._candidates.backends,
            labels=tuple(labels),
            costs=tuple(costs),
            values=self._values(),
            edges=self._edges(),
            entry=self._tariff.entries(),
            pools=self._tariff.pools,
            switch=self._tariff.switches(),
            ops=tuple(ops),
            required=self._required(),
        )

    def _required(self) -> frozenset[tuple[int, int]]:
        home = self._atoms.atom_of
        return frozenset((home[name], slot) for name, slot in self._user_rules.required if name in home)

    def _claimed_atoms(self, claim: Claim) -> list[int]:
        names = (name for name in claim.match.nodes if name not in self._atoms.replicable)
        return [self._atoms.atom_of[name] for name in names]

    def _usable(self, claim: Claim) -> bool:
        """Whether all atoms of a claim can run inside it: what else they hold must be supported by its backend."""
        matched, bit = set(claim.match.nodes), 1 << claim.backend
        if any((name, claim.backend) in self._user_rules.banned for name in matched):
            return False
        for atom in dict.fromkeys(self._claimed_atoms(claim)):
            names = dict.fromkeys((*self._atoms.members[atom], *self._atoms.replicas[atom]))
            rest = [name for name in names if name not in matched and name != self._atoms.cores[atom]]
            core = self._atoms.cores[atom]
            rest += [] if core in matched else [core]
            if any(not self._candidates.supporters(name) & bit and not self._follows(name, matched) for name in rest):
                return False
            if not self._user_rules.allows(core, claim.backend):
                return False
        return True

    def _follows(self, name: str, matched: set[str]) -> bool:
        node = self._graph.node_by_name[name]
        return node.op == "getitem" and node.references()[0] in matched

    def _labels(self, atom: int) -> dict[Label, tuple[float, float]]:
        """Ways to run an atom, none if it can run nowhere, each with the seconds of its op and of what it reads beside
        values of other atoms."""
        core = self._atoms.cores[atom]
        supporters = self._candidates.supporters(core)
        choices: dict[Label, tuple[float, float]] = {}
        inputs = cache(partial(self._inputs_cost, atom))
        for slot in range(len(self._candidates.backends)):
            if supporters >> slot & 1 and self._user_rules.allows(core, slot):
                choices[Label(slot, -1)] = self._op_cost(core, slot), inputs(slot)
        for number in self._claims_of[atom]:
            slot = self._claims[number].backend
            choices[Label(slot, number)] = self._claim_cost(number, atom), inputs(slot)
        return choices

    def _op_cost(self, name: str, slot: int) -> float:
        if is_free(self._graph.node_by_name[name]):
            return 0.0
        verdict = self._candidates.verdicts[name][slot]
        own = verdict.cost if isinstance(verdict, Supported) else None
        seconds = self._tariff.op(slot, self._user_rules, name) if own is None else own
        seconds = max(0.0, seconds + self._correction(name, slot))
        return seconds * self._user_rules.factors.get((name, slot), 1.0)

    def _correction(self, name: str, slot: int) -> float:
        return self._corrections.get((name, self._candidates.backends[slot]), 0.0)

    def _claim_cost(self, number: int, atom: int) -> float:
        claim, core, whole = self._claims[number], self._atoms.cores[atom], self._whole_costs[number]
        alone = core not in claim.match.nodes or whole is None
        own = self._op_cost(core, claim.backend) if alone else self._correction(core, claim.backend)
        root = claim.match.root
        if whole is not None and self._atoms.atom_of.get(root) == atom:
            own += whole * self._user_rules.factors.get((root, claim.backend), 1.0)
        return max(0.0, own)

    def _whole_cost(self, claim: Claim) -> float | None:
        """Seconds of a match that is priced as a whole: the backend's own, or those of the op that it names."""
        if claim.cost is not None or claim.priced_as is None:
            return claim.cost
        return self._tariff.equal(claim.backend, claim.priced_as)

    def _inputs_cost(self, atom: int, slot: int) -> float:
        """Reading graph inputs, making the constants that the atom owns, and reading those that it does not fuse."""
        seconds = 0.0
        for name in self._atoms.members[atom]:
            if name in self._atoms.replicable and not is_free(self._graph.node_by_name[name]):
                seconds += self._op_cost_of_replica(name, slot)
        core = self._atoms.cores[atom]
        if is_free(self._graph.node_by_name[core]):
            return seconds
        for base, meta in self._read_by(core).items():
            is_input = base in self._graph.input_by_name
            if not is_input and base not in self._atoms.replicable:
                continue
            if self._is_weight(base):
                seconds += self._tariff.weights(meta)[slot]
            elif is_input or not self._fusion(base, core) >> slot & 1:
                seconds += self._tariff.reads(meta)[slot]
            if is_input:
                seconds += self._entering_cost(base, slot)
        return seconds

    def _entering_cost(self, name: str, slot: int) -> float:
        """Copying a graph input into the one layout that a backend takes; constants were copied when bound."""
        meta = self._graph.input_by_name[name].meta
        if self._is_constant(name) or not isinstance(meta, TensorMeta):
            return 0.0
        return self._tariff.entering(slot, meta)

    def _is_weight(self, name: str) -> bool:
        given = self._graph.input_by_name.get(name)
        return given is not None and given.role.is_weight

    def _is_constant(self, name: str) -> bool:
        given = self._graph.input_by_name.get(name)
        return given is not None and given.role is InputRole.CONSTANT

    def _op_cost_of_replica(self, name: str, slot: int) -> float:
        meta = self._graph.node_by_name[name].outputs[0]
        write = self._tariff.writes(meta)[slot] if isinstance(meta, TensorMeta) else 0.0
        return self._op_cost(name, slot) + write

    def _read_by(self, core: str) -> dict[str, TensorMeta]:
        """What a core reads: per value, the smaller of the value and of the view of it that is read.

        Of tables, rows are gathered: no more than the result holds.
        """
        if core not in self._reads:
            self._reads[core] = self._read_anew(core)
        return self._reads[core]

    def _read_anew(self, core: str) -> dict[str, TensorMeta]:
        reads: dict[str, TensorMeta] = {}
        view = self._candidates.views[core]
        made = view.node.outputs[0] if view.op_class == "gather" and view.node.outputs else None
        for item in view.inputs:
            base = self._atoms.base_of.get(item.name)
            if base is None or not isinstance(item.meta, TensorMeta) or base in reads:
                continue
            whole = self._graph.value(base).meta
            reads[base] = self._tariff.smaller(item.meta, whole) if isinstance(whole, TensorMeta) else item.meta
            reads[base] = self._tariff.smaller(reads[base], made) if isinstance(made, TensorMeta) else reads[base]
        return reads

    def _fusion(self, producer: str, consumer: str) -> int:
        views = self._candidates.views
        pair = (views[producer].op_class, views[self._class_source(consumer)].op_class)
        if pair not in self._fused_bits:
            self._fused_bits[pair] = sum(1 << slot for slot, pairs in enumerate(self._fused) if pair in pairs)
        return self._fused_bits[pair]

    def _class_source(self, name: str) -> str:
        node = self._graph.node_by_name[name]
        return node.references()[0] if node.op == "getitem" and node.references()[0] in self._candidates.views else name

    def _values(self) -> tuple[Value, ...]:
        uses: dict[str, list[Use]] = {}
        for atom, core in enumerate(self._atoms.cores):
            free = is_free(self._graph.node_by_name[core])
            for base, meta in self._read_by(core).items():
                if base in self._graph.input_by_name or base in self._atoms.replicable:
                    continue
                reads = self._tariff.nothing if free else self._tariff.reads(meta)
                uses.setdefault(base, []).append(Use(atom, reads, self._value_fusion(base, core)))
        outputs = {self._atoms.base_of.get(name) for name in self._graph.outputs if name is not None}
        return tuple(
            self._value(node, tuple(uses.get(node.name, ())), node.name in outputs)
            for node in self._graph.placed_nodes
            if self._atoms.base_of[node.name] == node.name and (node.name in uses or node.name in outputs)
            if node.name not in self._atoms.replicable
        )

    def _value_fusion(self, base: str, core: str) -> int:
        return self._fusion(self._class_source(base), core)

    def _value(self, node: OpNode, uses: tuple[Use, ...], output: bool) -> Value:
        producer = self._atoms.atom_of[node.name]
        meta = node.outputs[0] if node.outputs else None
        zero = self._tariff.nothing
        if not isinstance(meta, TensorMeta):
            return Value(node.name, producer, zero, (zero,) * len(zero), uses, output)
        copied = is_free(self._graph.node_by_name[self._atoms.cores[producer]])
        writes = zero if copied else self._tariff.writes(meta)
        return Value(node.name, producer, writes, self._tariff.crossings(meta), uses, output)

    def _edges(self) -> tuple[tuple[int, int], ...]:
        home = self._atoms.atom_of
        replicable = self._atoms.replicable
        pairs = {
            (home[earlier], home[later])
            for earlier, later in dependencies(self._graph)
            if later not in replicable and not (earlier in replicable and earlier in self._atoms.replicas[home[later]])
        }
        return tuple(sorted(pair for pair in pairs if pair[0] != pair[1]))

    def _nowhere(self, names: Sequence[str]) -> PlacementError:
        """All that stands in the way at once; equal ops with equal reasons are told once."""
        alike: dict[tuple[str, str], list[OpNode]] = {}
        for name in names:
            node = self._graph.node_by_name[name]
            alike.setdefault((node.op, self._answers(name)), []).append(node)
        told = [f"{_listed(nodes)} ({op}): {answers}" for (op, answers), nodes in alike.items()]
        first = self._graph.node_by_name[names[0]]
        where = ", ".join(part for part in (first.source, first.module) if part)
        return PlacementError(
            what=f"no backend runs {' | '.join(told)}",
            where=where or f"graph {self._graph.id}",
            hint="allow a backend that runs these ops (eager runs every op), or relax the rule that forbids it",
        )

    def _answers(self, name: str) -> str:
        verdicts = zip(self._candidates.backends, self._candidates.verdicts[name], strict=True)
        return "; ".join(
            f"{backend}: {verdict.code} {verdict.detail}".rstrip()
            if isinstance(verdict, Unsupported)
            else f"{backend}: pinned elsewhere"
            for backend, verdict in verdicts
        )


def _listed(nodes: Sequence[OpNode]) -> str:
    """Nodes by name, the first few of many."""
    names = [f"%{node.name}" for node in nodes]
    if len(names) == 1:
        return f"node {names[0]}"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"nodes {', '.join(names[:_NAMED])}{more}"
