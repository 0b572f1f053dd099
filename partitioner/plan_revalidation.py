"""A plan that was made before, held against the graph and the backends of now.

Place: instead of ``place`` where a decision holds the placement itself: what was measured, or a lock file.
Input: an ``OpGraph``, a canonical plan, the backends and rules of now. Output: the plan with the graph's names; or
everything that speaks against it. Refusals of backends that have no part in it are computed when they are read.
Invariants: what is returned is legal, and no op is on a backend that refuses it now, alone or as part of a pattern that
fits there. Nothing is searched or priced: seconds are those that the plan came with.
Non-goals: conditions on whole regions; they say what is worth running, and that was decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mixbackend.contracts import (
    Backend,
    OpGraph,
    PlacementError,
    Plan,
    PlannedRegion,
    Preference,
    Supported,
    Unsupported,
    dependencies,
    taking_effects,
)
from mixbackend.contracts.legality import find_problems
from mixbackend.partitioner.atoms import form_atoms
from mixbackend.partitioner.judging import Candidates, judge, source_of_getitem
from mixbackend.partitioner.matching import Claim, find_claims
from mixbackend.partitioner.plan_canonical import FIXED, local_names, local_plan
from mixbackend.partitioner.user_rules import UserRules, apply_user_rules


class MisfitError(PlacementError):
    """A plan does not fit; ``problems`` holds all that speaks against it."""

    def __init__(self, graph_id: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            what=f"the plan does not fit graph {graph_id}: " + "; ".join(self.problems),
            hint="the model, a library or the configuration has changed since: tune again",
        )


def revalidated_plan(
    graph: OpGraph,
    plan: Plan,
    backends: Sequence[Backend],
    preferences: Sequence[Preference] = (),
    accepted: frozenset[str] = frozenset(),
) -> Plan:
    """A canonical plan for a graph, if it still holds.

    Args:
        graph: what to place.
        plan: made before, see ``plan_canonical``.
        backends: that may be used now.
        preferences: the user's rules; ``require`` and ``forbid`` hold for such a plan too.
        accepted: ids of regions that their backend need not be asked about: it has compiled them.

    Raises:
        MisfitError: it does not; with every problem.
    """
    problems = [*_unknown(graph, plan), *_unusable(plan, backends)]
    if problems:
        raise MisfitError(graph.id, problems)
    home = local_plan(plan, graph)
    problems = find_problems(graph, home.regions, taking_effects(backends))
    if not problems:
        # Rules may speak of backends that have no part in the plan. Where all only prefer, they forbid nothing.
        rules = preferences if any(rule.kind != "prefer" for rule in preferences) else ()
        remaining = home if rules else replace(home, regions=_without(home, accepted))
        asked = backends if rules else _partaking(remaining, backends)
        judged = judge(graph, asked, frozenset())
        problems = list(_refused(judged, _user_rules(judged, remaining, asked, rules), remaining))
    if problems:
        raise MisfitError(graph.id, problems)
    return replace(home, dynamic=graph.dynamic)


def with_refusals(graph: OpGraph, plan: Plan, backends: Sequence[Backend]) -> Plan:
    """A plan with what every backend refuses that does not run it; a plan that was searched for has them already.

    Args:
        graph: of the plan.
        plan: of ``place`` or ``revalidated_plan``.
        backends: that may be used now.
    """
    if plan.search != FIXED or plan.refusals:
        return plan
    owner = {name: region.backend for region in plan.regions for name in region.nodes}
    found = judge(graph, backends, frozenset()).refusals()
    return replace(plan, refusals=tuple(item for item in found if owner[item.node] != item.backend))


def _without(plan: Plan, accepted: frozenset[str]) -> tuple[PlannedRegion, ...]:
    return tuple(region for region in plan.regions if region.id not in accepted)


def _partaking(plan: Plan, backends: Sequence[Backend]) -> tuple[Backend, ...]:
    names = {region.backend for region in plan.regions}
    return tuple(backend for backend in backends if backend.name in names)


def _unknown(graph: OpGraph, plan: Plan) -> Iterator[str]:
    names = local_names(graph)
    for region in plan.regions:
        wanted = (*region.nodes, *region.copies, *(name for _, nodes in region.matches for name in nodes))
        strangers = [name for name in dict.fromkeys(wanted) if name not in names]
        if strangers:
            yield f"{region.id} holds {', '.join(strangers)}, which the graph does not have there"


def _unusable(plan: Plan, backends: Sequence[Backend]) -> Iterator[str]:
    usable = {backend.name for backend in backends}
    for name in dict.fromkeys(region.backend for region in plan.regions):
        if name not in usable:
            regions = ", ".join(region.id for region in plan.regions if region.backend == name)
            yield f"{regions} needs {name}, which cannot be used here"


def _user_rules(
    judged: Candidates, plan: Plan, backends: Sequence[Backend], preferences: Sequence[Preference]
) -> tuple[UserRules, tuple[Claim, ...]]:
    """Verdicts under the rules, and where patterns fit: those of the plan, and all of them where rules ask for more."""
    claims: tuple[Claim, ...] = ()
    planned = frozenset((region.backend, pattern) for region in plan.regions for pattern, _ in region.matches)
    if preferences or planned:
        later: dict[str, list[str]] = {}
        for first, second in dependencies(judged.graph):
            later.setdefault(first, []).append(second)
        wanted = None if preferences else planned
        claims = find_claims(judged, backends, frozenset(), later, form_atoms(judged).replicable, wanted)
    return apply_user_rules(judged, claims, preferences, {}), claims


def _refused(judged: Candidates, asked: tuple[UserRules, tuple[Claim, ...]], plan: Plan) -> Iterator[str]:
    user_rules, claims = asked
    slots = {name: slot for slot, name in enumerate(judged.backends)}
    fitting = {(claim.backend, claim.match.pattern, claim.match.nodes) for claim in claims}
    for region in plan.regions:
        slot = slots[region.backend]
        matched: set[str] = set()
        for pattern, nodes in region.matches:
            if (slot, pattern, nodes) in fitting:
                matched.update(name for name in nodes if (name, slot) not in user_rules.banned)
            else:
                yield f"{region.id}: pattern {pattern} of {region.backend} does not fit {_ops(judged, nodes)} any more"
        yield from _refused_ops(judged, user_rules, region, slot, matched)


def _refused_ops(
    judged: Candidates, user_rules: UserRules, region: PlannedRegion, slot: int, matched: set[str]
) -> Iterator[str]:
    for name in (*region.nodes, *region.copies):
        verdict = user_rules.candidates.verdicts[name][slot]
        source = source_of_getitem(judged.graph.node_by_name[name])
        if name in matched or source in matched or isinstance(verdict, Supported):
            continue
        assert isinstance(verdict, Unsupported)
        why = f"{verdict.code} {verdict.detail}".rstrip()
        yield f"{region.id}: {region.backend} refuses {_ops(judged, (name,))}: {why}"


def _ops(judged: Candidates, names: Sequence[str]) -> str:
    nodes = (judged.graph.node_by_name[name] for name in names)
    return ", ".join(f"{node.op} %{node.name}" + (f" ({node.module})" if node.module else "") for node in nodes)
