"""From a report to a lock file.

Place: behind ``mixbackend tune --lock``. Input: the report of a run, with identities, and the file as it was. Output:
the file as it shall be, and what changes.
Invariants: a graph has one entry, however often it was compiled (layers that share it, weights that were swapped). The
run's entries take the place of those that the same command made; entries of other commands stay, if they were made with
the same versions, threads and backends. Order and numbers do not depend on when something was compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mixbackend.locking.model import (
    TOP_LEVEL,
    LockedGraph,
    LockedJoint,
    LockedMatch,
    LockedRegion,
    LockedTrial,
    LockFile,
    MadeWith,
    rounded,
)
from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.plan.joint_decision import JointDecision
from mixbackend.reporting.records import GraphRecord
from mixbackend.reporting.trials import TuningRecord, finite

_PHASES = ("inference", "forward", "backward")


@dataclass(frozen=True)
class Change:
    """What a new file does to an old one, by names of graphs.

    Attributes:
        added, changed, same: entries of the run: new, with another plan, with the same plan.
        removed: entries of the same command that did not come up again.
        kept: entries of other commands.
        left_out: commands with entries that were made with something else, and are gone.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def locked_graphs(records: Iterable[GraphRecord], made_by: str) -> tuple[LockedGraph, ...]:
    """Entries of all graphs that can be named, each once, in the order of phases and names."""
    found: dict[str, LockedGraph] = {}
    for record in records:
        if record.identity is not None and record.identity.key not in found:
            found[record.identity.key] = _locked_graph(record, made_by)
    return tuple(sorted(found.values(), key=_order))


def locked_joints(decisions: Mapping[str, JointDecision], made_by: str) -> tuple[LockedJoint, ...]:
    """Entries of joint graphs; decisions come by the key of their graph, in the order of capture."""
    return tuple(
        LockedJoint(
            joint=f"joint-{number}",
            made_by=made_by,
            layout=decision.layout,  # type: ignore[arg-type]
            key=key,
            saved=decision.saved,
            recomputed=decision.recomputed,
        )
        for number, (key, decision) in enumerate(decisions.items())
    )


def merged(
    old: LockFile | None,
    made_with: MadeWith,
    graphs: tuple[LockedGraph, ...],
    joints: tuple[LockedJoint, ...],
    made_by: str,
) -> tuple[LockFile, Change]:
    """The new file, and what it does to the old one.

    Args:
        old: ``None`` if there was none.
        made_with: what the run was made with.
        graphs, joints: of the run.
        made_by: the run's command.
    """
    before = {graph.key: graph for graph in old.graphs} if old is not None else {}
    now = {graph.key for graph in graphs}
    others = [graph for graph in before.values() if graph.made_by != made_by and graph.key not in now]
    fits = old is not None and _alike(old.made_with, made_with)
    kept = others if fits else []
    backends = {item.name: item for item in old.made_with.backends} if old is not None and fits else {}
    backends.update((item.name, item) for item in made_with.backends)
    made_with = made_with.model_copy(update={"backends": tuple(backends[name] for name in sorted(backends))})
    commands = {graph.made_by for graph in kept}
    old_joints = old.joints if old is not None else ()
    cut_now = {joint.key for joint in joints}
    kept_joints = [item for item in old_joints if item.made_by in commands and item.key not in cut_now]
    file = LockFile(
        made_with=made_with,
        joints=tuple(sorted([*joints, *kept_joints], key=lambda joint: (joint.made_by, joint.joint))),
        graphs=tuple(sorted([*graphs, *kept], key=_order)),
    )
    mine = [(graph, before.get(graph.key)) for graph in graphs]
    change = Change(
        added=tuple(graph.graph for graph, was in mine if was is None),
        changed=tuple(graph.graph for graph, was in mine if was is not None and _plan(was) != _plan(graph)),
        same=tuple(graph.graph for graph, was in mine if was is not None and _plan(was) == _plan(graph)),
        removed=tuple(item.graph for item in before.values() if item.made_by == made_by and item.key not in now),
        kept=tuple(graph.graph for graph in kept),
        left_out=() if fits else tuple(dict.fromkeys(graph.made_by for graph in others)),
    )
    return file, change


def _alike(old: MadeWith, new: MadeWith) -> bool:
    """Whether entries made with either may stand in one file."""
    present = {item.name: item for item in new.backends}
    same = all(present.get(item.name, item) == item for item in old.backends)
    return same and (old.mixbackend, old.torch, old.threads) == (new.mixbackend, new.torch, new.threads)


def _order(graph: LockedGraph) -> tuple[object, ...]:
    name, _, number = graph.graph.rpartition("-")
    return graph.made_by, _PHASES.index(graph.phase), name, int(number) if number.isdigit() else 0, graph.key


def _plan(graph: LockedGraph) -> tuple[object, ...]:
    """What is run: everything but numbers, and words about them."""
    regions = tuple((item.backend, item.names(), item.copies, item.matches) for item in graph.regions)
    return graph.layout, graph.weights, regions


def _locked_graph(record: GraphRecord, made_by: str) -> LockedGraph:
    identity, graph = record.identity, record.graph
    assert identity is not None
    return LockedGraph(
        graph=graph.id,
        made_by=made_by,
        phase=graph.phase,
        dynamic=graph.dynamic,
        device=identity.device,
        weights=identity.weights,  # type: ignore[arg-type]
        layout=record.layout.chosen,  # type: ignore[arg-type]
        key=identity.key,
        inputs=identity.inputs,
        estimated_s=rounded(finite(record.plan.estimated_s) or 0.0),
        single_backend_s={
            name: rounded(seconds) for name, seconds in record.plan.single_backend_s if finite(seconds) is not None
        },
        chosen=record.tuning.chosen if record.tuning is not None else "",
        measured=_trials(record.tuning),
        regions=_regions(record),
    )


def _trials(tuning: TuningRecord | None) -> tuple[LockedTrial, ...]:
    trials = tuning.trials if tuning is not None else ()
    return tuple(
        LockedTrial(choice=trial.choice, median_s=rounded(trial.median_s))
        for trial in trials
        if trial.median_s is not None
    )


def _regions(record: GraphRecord) -> tuple[LockedRegion, ...]:
    modules = {name: record.graph.node_by_name[name].module or TOP_LEVEL for name in record.graph.node_by_name}
    found = []
    for planned, region in zip(canonical_plan(record.plan, record.graph).regions, record.plan.regions, strict=True):
        nodes: dict[str, tuple[str, ...]] = {}
        for name, home in zip(planned.nodes, region.nodes, strict=True):
            nodes[modules[home]] = (*nodes.get(modules[home], ()), name)
        measured = finite(record.record(region).measured_s)
        found.append(
            LockedRegion(
                region=region.id,
                backend=region.backend,
                estimated_s=rounded(finite(region.estimated_s) or 0.0),
                measured_s=None if measured is None else rounded(measured),
                ops=dict(sorted(record.ops(region).items())),
                nodes=nodes,
                copies=planned.copies,
                matches=tuple(LockedMatch(pattern=pattern, nodes=names) for pattern, names in planned.matches),
            )
        )
    return tuple(found)
