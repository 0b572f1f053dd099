"""Shortens facts for people: names, counts, paths, groups.

Place: between ``records`` and ``text``. Pure functions; everything they leave out stays in the report's dictionary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.contracts.bodies import ASSUMED_RUNS
from mixbackend.contracts.ops import OpNode
from mixbackend.contracts.plan import PlannedRegion
from mixbackend.contracts.preferences import NodeMatch, Preference
from mixbackend.partitioner.plan_canonical import FIXED
from mixbackend.reporting.decided import Decided
from mixbackend.reporting.records import GraphRecord, RegimeRecord

_REASON = 160
"""Characters of an error; events have the whole."""
_MOST_TRIALS = 4


def milliseconds(seconds: float | None) -> str:
    """Three significant digits; ``-`` if there is no finite number."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    value = seconds * 1e3
    if value == 0 or value >= 100:
        return f"{value:.0f}"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def short_op(op: str) -> str:
    """``addmm`` for ``aten.addmm.default``; overloads other than the default one are kept."""
    return op.removeprefix("aten.").removesuffix(".default")


def clipped(text: str, most: int) -> str:
    """The first characters of a text, and ``...`` where there are more."""
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."


def short_ops(counts: Mapping[str, int], most: int | None = 4) -> str:
    """``addmm x3, gelu, +2 more kinds``."""
    shown = [short_op(op) + (f" x{count}" if count > 1 else "") for op, count in list(counts.items())[:most]]
    hidden = len(counts) - len(shown)
    return ", ".join(shown) + (f", +{hidden} more kind{'s' if hidden > 1 else ''}" if hidden > 0 else "")


def short_modules(paths: Sequence[str], most: int = 3) -> str:
    """``encoder: layer.{0..11}.output, pooler``: paths that differ in one number are one, inner ones are left out."""
    outer = [path for path in paths if not any(path.startswith(other + ".") for other in paths)]
    while True:
        merged = _merge_numbers(outer)
        if len(merged) == len(outer):
            break
        outer = merged
    shared = _shared_parent(outer)
    names = [path.removeprefix(shared + ".") if shared else path for path in outer]
    hidden = len(names) - most
    listed = ", ".join(names[:most]) + (f", +{hidden} more" if hidden > 0 else "")
    return f"{shared}: {listed}" if shared else listed


def _shared_parent(paths: Sequence[str]) -> str:
    """The innermost module that all of several paths are inside of, ``""`` if there is none."""
    if len(paths) < 2:
        return ""
    shared = paths[0].split(".")[:-1]
    for path in paths[1:]:
        parts = path.split(".")[:-1]
        same = (index for index, (ours, theirs) in enumerate(zip(shared, parts, strict=False)) if ours != theirs)
        shared = shared[: next(same, min(len(shared), len(parts)))]
    return ".".join(shared)


def _merge_numbers(paths: Sequence[str]) -> list[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    order: dict[str, tuple[str, str]] = {}
    for path in paths:
        parts = path.split(".")
        places = [index for index, part in enumerate(parts) if part.isdigit()]
        if not places:
            continue
        last = places[-1]
        key = (".".join(parts[:last]), ".".join(parts[last + 1 :]))
        groups.setdefault(key, []).append(parts[last])
        order[path] = key
    merged: dict[str, None] = {}
    for path in paths:
        found = order.get(path)
        numbers = sorted({int(number) for number in groups[found]}) if found is not None else []
        merged[path if found is None or len(numbers) < 2 else _join(found[0], _ranges(numbers), found[1])] = None
    return list(merged)


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return "{" + ",".join(texts) + "}"


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Refusals of one backend for one reason.

    Attributes:
        backend, code: what they share.
        ops: operators, with how many nodes of each.
        nodes: how many nodes.
        detail: the most frequent wording.
    """

    backend: str
    code: str
    ops: Mapping[str, int]
    nodes: int
    detail: str


def group_refusals(record: GraphRecord) -> tuple[RefusalGroup, ...]:
    """Refusals by backend and code: by backend, most nodes first."""
    details: dict[tuple[str, str], Counter[str]] = {}
    ops: dict[tuple[str, str], Counter[str]] = {}
    for refusal in record.plan.refusals:
        key = (refusal.backend, refusal.code)
        details.setdefault(key, Counter())[refusal.detail] += 1
        ops.setdefault(key, Counter())[record.graph.node_by_name[refusal.node].op] += 1
    groups = [
        RefusalGroup(
            *key,
            dict(sorted(ops[key].items(), key=lambda item: (-item[1], item[0]))),
            sum(counts.values()),
            _wording(counts),
        )
        for key, counts in details.items()
    ]
    return tuple(sorted(groups, key=lambda group: (group.backend, -group.nodes, group.code)))


def _wording(counts: Mapping[str, int]) -> str:
    """The most frequent of some details."""
    detail = min(counts, key=lambda text: (-counts[text], text))
    others = len(counts) - 1
    return detail + (f", and {others} more" if others else "")


def was_measured(record: GraphRecord) -> bool:
    """Whether times of whole programs decided: before the graph was placed, or in its calls."""
    told = record.selection["happened"] if record.selection is not None else ()
    return record.decided.by == "measurements" or any(item["change"] in ("switched", "kept") for item in told)


def graph_seconds(record: GraphRecord) -> str:
    """``measured 0.90 ms, estimated 1.02 ms``; without the first where the plan was not timed as a whole."""
    timed = record.tuning.timed().get(record.tuning.chosen) if record.tuning is not None else None
    measured = f"measured {milliseconds(timed.median_s)} ms, " if timed is not None else ""
    return f"{measured}estimated {milliseconds(record.plan.estimated_s)} ms"


def how_good(record: GraphRecord) -> str:
    """One sentence: what the search proves by estimates; ``""`` where measurements or an earlier plan decided."""
    plan = record.plan
    if was_measured(record) or record.decided.by != "estimates" or plan.search == FIXED:
        return ""
    if plan.optimal:
        return "no legal placement into connected regions is cheaper under these costs"
    share = plan.bound_gap / plan.estimated_s if plan.estimated_s else 0.0
    return (
        f"whether another placement is cheaper is open by {milliseconds(plan.bound_gap)} ms ({share:.1%}) under these "
        f"costs (search: {plan.search}; regions as a whole cost more than the bound counts)"
    )


def compare_single(record: GraphRecord) -> str:
    """One sentence: the plan against the best single backend."""
    plan = record.plan
    if not plan.single_backend_s:
        return ""
    backend, seconds = min(plan.single_backend_s, key=lambda item: (item[1], item[0]))
    owners = record.nodes_per_backend()
    if set(owners) == {backend}:
        return f"everything on {backend}: no mixture is estimated to be faster"
    if plan.estimated_s <= 0.0:
        return f"best single backend: {backend} at {milliseconds(seconds)} ms"
    ratio = seconds / plan.estimated_s
    word = f"{ratio:.2f} times as fast as" if ratio >= 1.0 else f"{1 / ratio:.2f} times slower than"
    return (
        f"estimated {word} the best single backend ({backend}, {milliseconds(seconds)} ms, eager where it cannot run)"
    )


def describe_bodies(record: GraphRecord) -> str:
    """One sentence: what runs ops that carry subgraphs, and what runs these; ``""`` if there are none."""
    bodies = {node.name: node for node in record.graph.placed_nodes if node.bodies}
    if not bodies:
        return ""
    owners = {name: region.backend for region in record.plan.regions for name in region.nodes}
    holding = [region for region in record.plan.regions if not bodies.keys().isdisjoint(region.nodes)]
    counts = Counter(node.op.removeprefix("higher_order.") for node in bodies.values())
    running = ", ".join(sorted({owners[name] for name in bodies}))
    guessed = any(body.assumed for node in bodies.values() for body in node.bodies)
    assumed = f"; loops that end by their values count as {ASSUMED_RUNS:.0f} runs" if guessed else ""
    seconds = milliseconds(sum(region.estimated_s for region in holding))
    return (
        f"{short_ops(dict(counts))}: {running} {_inside(record, list(bodies.values()))} "
        f"(regions with them estimated {seconds} ms{assumed})"
    )


def _inside(record: GraphRecord, nodes: Sequence[OpNode]) -> str:
    """What runs the bodies of these ops."""
    placed = Counter(body.graph for node in nodes for body in node.bodies if body.graph)
    if placed:
        names = ", ".join(name + (f" x{count}" if count > 1 else "") for name, count in placed.items())
        return f"calls their bodies, which are graphs of their own: {names}"
    carrying = {node.name for node in nodes}
    refusing = sorted({item.backend for item in record.plan.refusals if item.node in carrying})
    why = f": {', '.join(refusing)} take nothing that carries subgraphs" if refusing else ""
    return f"runs their bodies op by op{why}"


def compare_trials(record: GraphRecord) -> str:
    """One sentence: what was measured before the graph was placed, fastest first."""
    assert record.tuning is not None
    timed = [trial for trial in record.tuning.trials if trial.median_s is not None]
    fastest = sorted(timed, key=lambda trial: trial.median_s or 0.0)[:_MOST_TRIALS]
    rows = "; ".join(f"{trial.choice} {milliseconds(trial.median_s)}" for trial in fastest)
    return f"measured {len(record.tuning.trials)} plans, took {record.tuning.chosen} (fastest, ms: {rows})"


def describe_selection(selection: Mapping[str, Any]) -> str:
    """One sentence: what the graph's calls found out about other programs, and what is to come."""
    changes = Counter(item["change"] for item in selection["happened"])
    switches = [_switch(item) for item in selection["happened"] if item["change"] == "switched"]
    others = "1 other was" if changes["kept"] == 1 else f"{changes['kept']} others were"
    turns = (", ".join(switches) or "no switch") + (f"; {others} not found quicker" if changes["kept"] else "")
    failed = [item for item in selection["happened"] if item["change"] == "out"]
    if failed:
        turns += f"; {len(failed)} failed, as {failed[0]['challenger']}: {failed[0]['detail'][:_REASON]}"
    now = f"tries {selection['trying']}, " if selection["trying"] else ""
    left = f"{now}{selection['waiting']} left to try" if now or selection["waiting"] else "settled"
    first, best = (milliseconds(selection[name]) for name in ("first_result_s", "best_result_s"))
    return (
        f"in {selection['calls']} calls of {selection['spent_s']:.3g} s: runs {selection['champion']} ({turns}); "
        f"{left}; trying took {milliseconds(selection['tried_s'])} ms; "
        f"ms to the first result {first}, to the best {best}"
    )


def _switch(item: Mapping[str, Any]) -> str:
    ratio = f", {item['ratio']:.3g} of the time before" if item["ratio"] is not None else ""
    return f"{item['challenger']} at call {item['call']}{ratio}"


def next_best(record: GraphRecord, region: PlannedRegion) -> str:
    """``0.12 onednn``: estimated milliseconds that the next best backend would cost more, ``-`` if no other can."""
    known = record.alternatives.get(region.id)
    if known is None:
        return ""
    able = [item for item in known.alternatives if item.change_s is not None]
    best = min(able, key=lambda item: item.change_s or 0.0, default=None)
    return "-" if best is None else f"{milliseconds(known.margin_s)} {best.backend}"


def how_decided(how: Decided) -> str:
    """One sentence: what a placement was decided by, and by how much."""
    if how.by == "estimates":
        return "decided by estimates"
    if how.by == "earlier plan":
        return "decided by a plan that was made before; estimates did not decide"
    if how.runner_up is None or how.margin_s is None:
        return f"decided by measurements: {how.chosen} was the only plan that could be timed"
    word = "faster" if how.margin_s >= 0.0 else "slower"
    spread = f", spread {milliseconds(how.spread_s)} ms" if how.spread_s is not None else ""
    return (
        f"decided by measurements: {how.chosen} was {milliseconds(abs(how.margin_s))} ms {word} than "
        f"{how.runner_up}{spread}; estimates did not decide"
    )


def compare_layouts(record: GraphRecord) -> str:
    """One sentence: the layout of the graph's images against the other one."""
    layout = record.layout
    seconds = ", ".join(f"{name} {milliseconds(value)}" for name, value in layout.estimated_s)
    copies = f" by {layout.conversions} conversions" if layout.conversions else ""
    return f"layout of images: {layout.chosen}{copies} (estimated ms: {seconds})"


def describe_regime(regime: RegimeRecord) -> str:
    """One line: a range of sizes, and which backends run the graph there."""
    above = "" if regime.last is None else str(regime.last)
    owners = ", ".join(f"{backend} {count}" for backend, count in regime.record.nodes_per_backend().items())
    seconds = milliseconds(regime.record.plan.estimated_s)
    state = "" if regime.built else ", not needed so far"
    return f"{regime.quantity} {regime.first}..{above}: {owners} (estimated {seconds} ms at {regime.size}{state})"


def unmatched_rules(preferences: Iterable[Preference], graphs: Sequence[GraphRecord]) -> tuple[str, ...]:
    """A warning for each rule that no op of these graphs matches.

    Whether a backend's pattern was found is known only for those that were chosen, so a rule about a pattern counts as
    matched where everything else of it matches.
    """
    wishes = tuple(preferences)
    if not graphs or not wishes:
        return ()
    views = [record.graph.view(node.name) for record in graphs for node in record.graph.placed_nodes]
    warnings = []
    for preference in wishes:
        match = preference.match
        if any(match.matches(view, frozenset({match.pattern} - {""})) for view in views):
            continue
        origin = f"{preference.origin}: " if preference.origin else ""
        wish = f"{preference.kind} {preference.backend} where {describe_match(match)}"
        warnings.append(f"{origin}no op matches the rule `{wish}`")
    return tuple(warnings)


def describe_match(match: NodeMatch) -> str:
    """``op=aten.mm phase=inference``; ``always`` if nothing is asked."""
    fields = {name: getattr(match, name) for name in match.__slots__}
    texts = [
        f"{name}={','.join(value) if isinstance(value, tuple) else value}" for name, value in fields.items() if value
    ]
    return " ".join(texts) or "always"
