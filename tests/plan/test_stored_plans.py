"""What one process planned, later ones take: the very plan, without a search, unless anything it depends on changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mixbackend import registry
from mixbackend.backends.eager import EagerBackend
from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import load_config
from mixbackend.contracts import OpGraph
from mixbackend.cost import costs as costs_module
from mixbackend.graph.trace import trace_graph
from mixbackend.plan import stored_plans
from mixbackend.plan.environment import Environment
from mixbackend.plan.rematerialization import mark_saved

Open = Callable[..., Environment]


@pytest.fixture
def another(tmp_path: Path) -> Open:
    """The environment of another process that has the same cache folder."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)

    def opened(**options: Any) -> Environment:
        return open_environment(
            load_config({"backends": ["codegen", "eager"], "cache": {"dir": str(folder)}, **options})
        )

    return opened


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Phases of the graphs that plans are searched for."""
    seen: list[str] = []
    placements = costs_module.Placements

    def counted(graph: OpGraph, *arguments: Any, **options: Any) -> Any:
        seen.append(graph.phase)
        return placements(graph, *arguments, **options)

    monkeypatch.setattr(costs_module, "Placements", counted)
    return seen


def traced(rows: int = 64, graph_id: str = "inference-0") -> OpGraph:
    def function(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(value @ weight) + 1.0, -1)

    return trace_graph(function, [torch.randn(rows, 32), torch.randn(32, 48)], graph_id=graph_id)[1]


def test_a_later_process_takes_the_very_plan(another: Open, searched: list[str]) -> None:
    plan = another().planner.place(traced())
    assert len(searched) == 1 and plan.refusals is not None and plan.single_backend_s
    assert another().planner.place(traced()) == plan
    assert another().planner.place(traced(graph_id="inference-7")).graph_id == "inference-7"
    assert len(searched) == 1


def test_a_later_process_prices_nothing_to_know_what_is_comparable(
    another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = costs_module.SessionCosts
    monkeypatch.setattr(sessions, "comparable", lambda *_: frozenset({"codegen", "eager"}))
    monkeypatch.setattr(sessions, "error", lambda _, graph, names: {"codegen": 0.3, "eager": 0.0}[names[0]])
    assert another().planner.comparable(traced()) == {"codegen": 0.3, "eager": 0.0}
    for asked in ("comparable", "error", "running"):
        monkeypatch.setattr(sessions, asked, lambda *_: pytest.fail("it was asked again"))
    assert another().planner.comparable(traced()) == {"codegen": 0.3, "eager": 0.0}


def test_repairs_are_searched_for(another: Open, searched: list[str]) -> None:
    planner, graph = another().planner, traced()
    plan = planner.place(graph)
    node = plan.regions[0].nodes[0]
    assert planner.place(graph, frozenset({(node, "codegen")})).regions
    assert planner.place(graph, pinned={node: "eager"}).regions
    assert len(searched) == 3 and planner.place(graph) == plan


def measured(environment: Environment) -> None:
    environment.storage.database.set_rates("device", "another look", {})


def threads(_: Environment) -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)


@pytest.mark.parametrize("change", [measured, threads])
def test_what_changed_since_is_planned_anew(
    change: Callable[[Environment], None], another: Open, searched: list[str]
) -> None:
    before = torch.get_num_threads()
    try:
        another().planner.place(traced())
        change(another())
        another().planner.place(traced())
    finally:
        torch.set_num_threads(before)
    assert len(searched) == 2


def test_other_sizes_settings_backends_and_sources_are_other_questions(
    another: Open, searched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    another().planner.place(traced())
    another().planner.place(traced(rows=65))
    another(min_region={"codegen": 3}).planner.place(traced())
    another(backends=["eager"]).planner.place(traced())
    monkeypatch.setattr(stored_plans, "own_sources", lambda: "other code")
    another().planner.place(traced())
    assert len(searched) == 5


def lost_node(value: dict[str, Any]) -> None:
    value["regions"][0]["nodes"] = value["regions"][0]["nodes"][1:]


def stranger(value: dict[str, Any]) -> None:
    value["regions"][0]["backend"] = "nobody"


def no_plan(value: dict[str, Any]) -> None:
    del value["regions"]


@pytest.mark.parametrize("damage", [lost_node, stranger, no_plan])
def test_a_row_that_does_not_hold_is_made_again(
    damage: Callable[[dict[str, Any]], None], another: Open, searched: list[str]
) -> None:
    plan = another().planner.place(traced())
    database = another().storage.database
    (row,) = database.rows("plans")
    value = json.loads(row["value"])
    damage(value)
    database.set_plan(row["subject"], value, device=row["device"], fingerprints={})
    assert another().planner.place(traced()) == plan
    assert another().planner.place(traced()) == plan
    assert len(searched) == 2


def test_nothing_is_kept_of_backends_that_no_other_process_has(another: Open, searched: list[str]) -> None:
    with registry.isolated_registry(EagerBackend()):
        for _ in range(2):
            another(backends=["eager"]).planner.place(traced())
    assert len(searched) == 2 and another().storage.database.rows("plans") == []


@pytest.mark.parametrize(
    ("look", "searches"),
    [
        ({"settled": True, "ago_s": 1e9}, 1),
        ({"settled": False, "ago_s": 0.0}, 1),
        ({"settled": False, "ago_s": 1900.0}, 2),
        ({"settled": "?"}, 2),
    ],
)
def test_nothing_is_taken_when_a_look_at_the_machine_is_due(
    look: dict[str, Any], searches: int, another: Open, searched: list[str]
) -> None:
    if "ago_s" in look:
        look = {"settled": look["settled"], "at": time.time() - look["ago_s"]}
    another().storage.database.set_rates("look", "here", look)
    for _ in range(2):
        another().planner.place(traced())
    assert len(searched) == searches


def joint() -> torch.fx.GraphModule:
    def function(value: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = torch.relu(value @ weight)
        return hidden, (hidden > 0) * hidden.exp()

    return trace_graph(function, [torch.randn(64, 32), torch.randn(32, 48)], phase="forward")[0]


@pytest.mark.parametrize("damaged", [None, {"layout": "as_traced", "saved": ["aten.exp.default@99"]}, {"layout": "?"}])
def test_what_a_joint_graph_saves_is_taken_too(
    damaged: dict[str, Any] | None, another: Open, searched: list[str]
) -> None:
    decision = mark_saved(joint(), another().planner)
    database = another().storage.database
    if damaged is not None:
        for row in database.rows("plans"):
            database.set_plan(row["subject"], {"recomputed": [], **damaged}, device="", fingerprints={})
    assert mark_saved(joint(), another().planner) == decision
    assert len(searched) == (1 if damaged is None else 2)
