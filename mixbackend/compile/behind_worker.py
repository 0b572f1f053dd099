"""A challenger built behind: planned and compiled in a process of its own, into the artifact store.

Place: called by ``host.behind_worker`` with the job of ``compile.challenger_build``, which loads what came of it.
Input: the canonical text of a graph, the configuration, a choice. Output: the choice with the plan that it came to.
Invariants: no kernel runs, no value is needed; the database is only read. Backends take part that the user's process
has and that are the same here, by their fingerprints: what is registered in that process alone, or told something that
this one is not, has no part in what is built behind, and the answer says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from mixbackend import registry
from mixbackend.backends.common.side_by_side import limit_side_by_side
from mixbackend.compile.driver import prepared_graph
from mixbackend.compile.open_environment import open_environment
from mixbackend.compile.propose import propose
from mixbackend.compile.sized_graph import Row
from mixbackend.configuration import load_config
from mixbackend.contracts.region_text import read_region_text
from mixbackend.contracts.torch_compat import (
    KernelSwitches,
    ask_deterministic,
    set_inductor_choices,
    set_kernel_switches,
)
from mixbackend.cost.switches import SWITCH
from mixbackend.graph.identity import Captured
from mixbackend.plan.choice import Choice
from mixbackend.select.decision import Decision
from mixbackend.storage.background_io import finish

_SHARING_S = 5.0


class NotTheSameError(Exception):
    """What would be built behind is not what the user's process looks for."""


def build(
    graph: str,
    config: Mapping[str, Any],
    records: bool,
    choice: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    threads: int,
    switches: KernelSwitches,
    inductor: Mapping[str, Any],
) -> dict[str, Any]:
    """Plan a challenger and compile its regions; called in the other process.

    Args:
        graph, config, records, choice: see ``challenger_build.challenger_job``.
        fingerprints: of the backends, as the user's process knows them.
        threads: that the code is made for; none of them works here.
        switches: of torch's kernels, as they are in the user's process.
        inductor: settings of its, likewise.

    Raises:
        NotTheSameError: a backend that the choice is for is not the same here.
        Exception: whatever placing or compiling raises.
    """
    # One thread compiles; the code is made for all threads of the user's process.
    limit_side_by_side(1)
    torch.set_num_threads(threads)
    set_kernel_switches(switches)
    set_inductor_choices(inductor)
    os.environ[SWITCH] = "0"
    taken = Choice.from_dict(choice)
    found, others = _same_backends(fingerprints)
    missing = sorted(others.keys() & {registry.FALLBACK, taken.single})
    if missing:
        raise NotTheSameError("; ".join(others[name] for name in missing))
    environment = open_environment(load_config(config), records, found=found, behind=True)
    region = read_region_text(graph)
    ask_deterministic(region.deterministic)
    captured = Captured.of_region(region, "behind")
    with torch.no_grad():
        outlook = propose(captured, prepared_graph(captured, environment), environment, Decision(taken))
        assert outlook.sized is not None, "a decision leaves nothing to be measured"
        row = Row.begun(outlook.sized, captured.id, environment)
    # After the answer this process may be ended at any moment: what it compiled reaches the remote cache before.
    finish(_SHARING_S)
    planned = row.home.as_choice(taken)
    return {"choice": planned.to_dict(), "estimated_s": row.home.plan.estimated_s, "left_out": sorted(others.values())}


def _same_backends(fingerprints: Mapping[str, str]) -> tuple[registry.Resolution, dict[str, str]]:
    """Those that are as in the user's process; of the others, by name, how they differ."""
    known = registry.names()
    found = registry.resolution([name for name in fingerprints if name in known])
    here = {backend.name: backend.fingerprint() for backend in found.backends}
    others = {
        name: f"{name} is {here.get(name)!r} behind, and {there!r} in the process"
        for name, there in fingerprints.items()
        if here.get(name) != there
    }
    return replace(found, backends=tuple(item for item in found.backends if item.name not in others)), others
