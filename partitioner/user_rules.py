"""Preferences and pins as verdicts and factors.

Place: between judging and pricing. Input: candidates, claims, the user's rules, and the placements that a repair keeps.
Output: candidates with more refusals, the factor of each op on each backend, and the pins.
Invariants: the first rule that matches a node decides; ``getitem`` and views follow their producer's.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from mixbackend.contracts import PlacementError, Preference, Supported, Unsupported, Verdict
from mixbackend.partitioner.atoms import is_free
from mixbackend.partitioner.judging import Candidates, source_of_getitem
from mixbackend.partitioner.matching import Claim


@dataclass(frozen=True, eq=False)
class UserRules:
    """What the user and the repair ask for.

    Attributes:
        candidates: with refusals from ``require`` and ``forbid``.
        factors: by (node, backend number); missing pairs are 1.
        banned: (node, backend number) pairs that ``require`` and ``forbid`` rule out, for claims too.
        pinned: by node name, the backend number that must stay.
        required: (node, backend number) pairs that ``require`` rules name.
    """

    candidates: Candidates
    factors: Mapping[tuple[str, int], float]
    banned: frozenset[tuple[str, int]]
    pinned: Mapping[str, int]
    required: frozenset[tuple[str, int]] = frozenset()

    def allows(self, name: str, backend: int) -> bool:
        """Whether a node may go to a backend as far as pins say."""
        return self.pinned.get(name, backend) == backend


def apply_user_rules(
    candidates: Candidates,
    claims: Sequence[Claim],
    preferences: Sequence[Preference],
    pinned: Mapping[str, str],
) -> UserRules:
    """Turn rules into verdicts and factors.

    Raises:
        PlacementError: a pin names a backend that is not in the list.
    """
    slot_by_name = {name: slot for slot, name in enumerate(candidates.backends)}
    unknown = sorted({backend for backend in pinned.values() if backend not in slot_by_name})
    if unknown:
        raise PlacementError(what=f"nodes are pinned to backends that are not in use: {', '.join(unknown)}")
    pins = {name: slot_by_name[backend] for name, backend in pinned.items()}
    rule_by_node = _first_rules(candidates, claims, preferences)
    verdicts = dict(candidates.verdicts)
    factors: dict[tuple[str, int], float] = {}
    banned: set[tuple[str, int]] = set()
    required: set[tuple[str, int]] = set()
    for name, rule in rule_by_node.items():
        slot = slot_by_name.get(rule.backend)
        if rule.kind == "prefer":
            factors.update({} if slot is None else {(name, slot): rule.factor})
            continue
        wanted = rule.kind == "require"
        required |= {(name, slot)} if wanted and slot is not None else set()
        banned |= {(name, other) for other in slot_by_name.values() if (other == slot) != wanted}
        verdicts[name] = _restrict(candidates, name, rule)
    for node in candidates.graph.placed_nodes:
        source = source_of_getitem(node)
        if source in verdicts:
            verdicts[node.name] = verdicts[source]
    return UserRules(replace(candidates, verdicts=verdicts), factors, frozenset(banned), pins, frozenset(required))


def _first_rules(
    candidates: Candidates, claims: Sequence[Claim], preferences: Sequence[Preference]
) -> dict[str, Preference]:
    if not preferences:
        return {}
    patterns: dict[str, set[str]] = {}
    for claim in claims:
        for name in claim.match.nodes:
            patterns.setdefault(name, set()).add(claim.match.pattern)
    rules: dict[str, Preference] = {}
    answers: dict[Hashable, Preference | None] = {}
    for node in candidates.graph.placed_nodes:
        if is_free(node):
            continue
        names = frozenset(patterns.get(node.name, ()))
        key = (candidates.signatures[node.name], node.module, names)
        if key not in answers:
            view = candidates.views[node.name]
            answers[key] = next((rule for rule in preferences if rule.match.matches(view, names)), None)
        rule = answers[key]
        if rule is not None:
            rules[node.name] = rule
    return rules


def _restrict(candidates: Candidates, name: str, rule: Preference) -> tuple[Verdict, ...]:
    origin = f" ({rule.origin})" if rule.origin else ""
    detail = f"{rule.kind} {rule.backend}{origin}"
    return tuple(
        Unsupported("preference", detail)
        if isinstance(verdict, Supported) and (backend == rule.backend) == (rule.kind == "forbid")
        else verdict
        for backend, verdict in zip(candidates.backends, candidates.verdicts[name], strict=True)
    )
