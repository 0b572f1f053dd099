"""What a decision belongs to, what is tried for a graph, and what cannot be tuned."""

from __future__ import annotations

import json

import pytest
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.eager import EagerBackend
from mixbackend.backends.onednn import OneDnnBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import load_config
from mixbackend.contracts import InputRole
from mixbackend.contracts.region_text import read_region_text
from mixbackend.graph.describe import PlaceholderRole, describe
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.environment import Environment
from mixbackend.plan.layout_choice import choose_layout
from mixbackend.registry import isolated_registry
from mixbackend.select import race, tuner
from mixbackend.select.candidates import find_candidates, in_layouts
from mixbackend.select.decision import MEASURED, NO_TIME, SLOWER, UNTUNED, Decision, Trial

GIVEN = {"backends": ["codegen", "onednn", "eager"]}


def environment(tmp_path, **settings) -> Environment:
    return open_environment(load_config({**GIVEN, "cache": {"dir": str(tmp_path / "cache")}, **settings}))


def layer(value, weight):
    return torch.nn.functional.gelu(value @ weight)


def captured(rows: int = 4):
    return trace_graph(layer, [torch.randn(rows, 8), torch.randn(8, 16)])[0]


ROLES = {"arg1_1": PlaceholderRole(InputRole.PARAMETER, "weight")}


def graph(rows: int = 4, roles=None) -> tuner.Captured:
    return tuner.Captured(captured(rows), "inference", ROLES if roles is None else roles, "g")


def key(mine: Environment, rows: int = 4, roles=None) -> str:
    return tuner.task_of(graph(rows, roles), mine).key


def test_a_decision_belongs_to_graph_backends_device_threads_and_rules(tmp_path, monkeypatch) -> None:
    plain = environment(tmp_path)
    assert key(plain) == key(plain)
    rules = [{"match": {"op": "aten.mm"}, "forbid": "onednn"}]
    others = [
        key(plain, rows=5),
        key(plain, roles={}),
        key(environment(tmp_path, backends=["codegen", "eager"])),
        key(environment(tmp_path, rules=rules)),
        key(environment(tmp_path, weights="live")),
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        others.append(key(environment(tmp_path)))
    finally:
        torch.set_num_threads(threads)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(Environment, "device", lambda self, graph: f"{graph.device_type} of another make")
        others.append(key(plain))
    assert len({key(plain), *others}) == 1 + len(others)
    assert key(environment(tmp_path, verify={"when": "off"}, search={"mode": "measure"})) == key(plain)


def test_decisions_are_remembered_until_they_do_not_fit(tmp_path) -> None:
    mine = environment(tmp_path)
    task = tuner.task_of(graph(), mine)
    assert tuner.remembered(task, mine) is UNTUNED
    decision = Decision(Choice(single="onednn"), (Trial(DEFAULT, 1.0, MEASURED, "", (2.0,)),))
    mine.storage.database.set_decision(task.key, decision.to_dict())
    assert tuner.remembered(task, environment(tmp_path)) == decision
    mine.storage.database.set_decision(task.key, {"choice": "fast"})
    assert tuner.remembered(task, mine) is UNTUNED


def test_nothing_is_looked_up_where_nothing_was_tuned(tmp_path) -> None:
    mine = environment(tmp_path)
    assert tuner.task_if_any(graph(), mine) is None
    mine.storage.database.set_decision("other", UNTUNED.to_dict())
    assert tuner.task_if_any(graph(), mine) is not None


def test_rules_about_modules_cannot_be_read_elsewhere(tmp_path) -> None:
    rules = [{"match": {"module": "encoder.*"}, "prefer": "onednn"}]
    mine = environment(tmp_path, rules=rules, search={"mode": "measure"})
    assert tuner.task_if_any(graph(), mine) is None
    (event,) = mine.events.events()
    assert event.kind == "tuning" and "modules" in event.detail


def test_backends_of_this_process_alone_cannot_be_measured_elsewhere(tmp_path) -> None:
    with isolated_registry(CodegenBackend(), OneDnnBackend(), EagerBackend()):
        assert "registered in this process" in tuner.why_untunable(environment(tmp_path))


def test_the_planners_mixture_comes_first_and_no_plan_twice(tmp_path) -> None:
    mine = environment(tmp_path)
    candidates = tuple(find_candidates(in_layouts(captured(64), "inference", {}), mine.planner).values())
    assert candidates[0].choice == DEFAULT
    assert len({candidate.choice for candidate in candidates}) == len(candidates)
    assert [candidate.estimated_s for candidate in candidates[1:]] == sorted(
        candidate.estimated_s for candidate in candidates[1:]
    )
    described = describe(captured(64), "inference", "tuning", {})
    plans = [frozenset(mine.planner.place(described, choice=candidate.choice).regions) for candidate in candidates]
    assert len(set(plans)) == len(plans)
    singles = [mine.planner.place(described, choice=Choice(single=backend.name)) for backend in mine.backends]
    owners = [{name: region.backend for region in plan.regions for name in region.nodes} for plan in singles]
    tried = [{name: region.backend for region in regions for name in region.nodes} for regions in plans]
    assert all(owner in tried for owner in owners)


def test_images_are_tried_in_both_layouts(tmp_path) -> None:
    def convolve(image, weight):
        return torch.nn.functional.conv2d(image, weight).relu()

    module, _ = trace_graph(convolve, [torch.randn(1, 8, 16, 16), torch.randn(8, 8, 3, 3)])
    candidates = find_candidates(in_layouts(module, "inference", {}), environment(tmp_path).planner)
    layouts = {candidate.choice.layout for candidate in candidates.values()}
    assert layouts == {"as_traced", "channels_last"}


def test_a_single_backend_runs_all_it_can(tmp_path) -> None:
    mine = environment(tmp_path)
    described = describe(captured(64), "inference", "tuning", {})
    plan = mine.planner.place(described, choice=Choice(single="onednn"))
    owner = {name: region.backend for region in plan.regions for name in region.nodes}
    assert owner["mm"] == "onednn" and set(owner.values()) <= {"onednn", "eager"}
    repaired = mine.planner.place(described, frozenset({("mm", "onednn")}), {"gelu": "eager"}, Choice(single="onednn"))
    assert {region.backend for region in repaired.regions} == {"eager"}


def test_the_mixture_of_all_backends_is_remembered_as_such() -> None:
    choice = Choice(every=True)
    assert Choice.from_dict(json.loads(json.dumps(choice.to_dict()))) == choice
    assert str(choice) == "mixture of all that save anything" and str(Choice()) == "mixture"


def test_a_plan_holds_for_another_capture_of_the_graph(tmp_path) -> None:
    mine = environment(tmp_path)
    described = describe(captured(64), "inference", "tuning", {})
    single = mine.planner.place(described, choice=Choice(single="onednn"))
    fixed = Choice.from_dict(json.loads(json.dumps(Choice(plan=canonical_plan(single, described)).to_dict())))
    renamed = captured(64)
    for place, node in enumerate(renamed.graph.nodes):
        node.name = f"other{place}" if node.op == "call_function" else node.name
    again = describe(renamed, "inference", "again", {})
    plan = mine.planner.place(again, choice=fixed)
    assert plan.graph_id == "again" and plan.search == "fixed" and not plan.optimal
    assert [(region.backend, len(region.nodes)) for region in plan.regions] == [
        (region.backend, len(region.nodes)) for region in single.regions
    ]
    assert not mine.events.events()


def test_a_plan_of_another_graph_is_left_aside_with_an_event(tmp_path) -> None:
    mine = environment(tmp_path)
    described = describe(captured(64), "inference", "tuning", {})
    other = trace_graph(lambda value: value.sin().cos(), [torch.randn(4)])[0]
    plan = mine.planner.place(
        describe(other, "inference", "g", {}),
        choice=Choice(plan=canonical_plan(mine.planner.place(described), described)),
    )
    assert plan.search != "fixed"
    (event,) = mine.events.events()
    assert event.kind == "tuning" and "which the graph does not have there" in event.detail


def test_a_plan_belongs_to_its_layout(tmp_path) -> None:
    def convolve(image, weight):
        return torch.nn.functional.conv2d(image, weight).relu()

    mine = environment(tmp_path)
    module, _ = trace_graph(convolve, [torch.randn(1, 8, 16, 16), torch.randn(8, 8, 3, 3)])
    for layout, graph in in_layouts(module, "inference", {}).items():
        choice = Choice(layout=layout, plan=canonical_plan(mine.planner.place(graph), graph))
        chosen = choose_layout(module, "inference", "g", {}, mine.planner, choice)
        assert chosen.record.chosen == layout and chosen.plan is None, "there was nothing to choose"
        assert [node.op for node in chosen.graph.nodes] == [node.op for node in graph.nodes]
        assert mine.planner.place(chosen.graph, choice=choice).search == "fixed"
    assert not mine.events.events()


def test_a_race_that_was_interrupted_goes_on_without_those_that_had_left(tmp_path, monkeypatch) -> None:
    mine = environment(tmp_path)
    task = tuner.task_of(graph(64, {}), mine)
    started: list[list[Choice]] = []

    def interrupted(candidates, start, budget_s, show, further, told, **more):
        started.append([candidate.choice for candidate in candidates])
        told(Trial(candidates[0].choice, 1.0, "crash"))
        told(Trial(candidates[-1].choice, 1.0, SLOWER, "", (2.0,)))
        told(Trial(candidates[-2].choice, 1.0, NO_TIME))
        raise KeyboardInterrupt

    def finished(candidates, start, budget_s, show, further, told, **more):
        started.append([candidate.choice for candidate in candidates])
        return tuple(Trial(candidate.choice, 1.0, MEASURED, "", (1.0,)) for candidate in candidates)

    values = [torch.randn(64, 8), torch.randn(8, 16)]
    monkeypatch.setattr(race, "race", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuner.tune(graph(64, {}), task, values, mine)
    monkeypatch.setattr(race, "race", finished)
    decision = tuner.tune(graph(64, {}), task, values, mine)
    assert started[1] == started[0][:-1]
    assert [trial.status for trial in decision.trials] == [MEASURED] * len(started[1]) + [SLOWER]
    assert tuner.remembered(task, mine) == decision
    assert len(mine.storage.database._file.read("SELECT subject FROM decisions")) == 1


def test_a_graph_that_holds_tensors_of_its_own_is_placed_by_estimates(tmp_path) -> None:
    def shifted(value):
        return value * torch.tensor([1.0, 2.0, 3.0])

    mixture = Mixture(load_config({**GIVEN, "cache": {"dir": str(tmp_path)}, "search": {"mode": "measure"}}))
    value = torch.randn(4, 3)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(shifted, backend=mixture)(value), shifted(value))
    details = [event.detail for event in mixture.report().events if event.kind == "tuning"]
    assert any("holds tensors that are no inputs" in detail for detail in details), details


def test_a_graph_that_reckons_with_its_sizes_has_a_text_that_does_so(tmp_path) -> None:
    """Rows times columns of a batch of sequences: no input of the graph, and another number in every call."""

    def function(value):
        rows, columns, width = value.shape
        return value.reshape(rows * columns, width).cumsum(0) / (rows * columns)

    tasks = []
    for rows, columns in ((2, 3), (5, 7)):
        module = trace_graph(function, [torch.randn(rows, columns, 4)], dynamic=True)[0]
        tasks.append(tuner.task_of(tuner.Captured(module, "inference", {}, "g"), environment(tmp_path)))
    first, second = tasks
    assert first.key == second.key
    assert first.inputs == (0,)
    value = torch.randn(6, 2, 4)
    (result,) = read_region_text(second.text).graph_module(value)
    torch.testing.assert_close(result, function(value))


def test_a_look_up_that_fails_never_takes_the_model_down(tmp_path, monkeypatch) -> None:
    def broken(captured, environment):
        raise KeyError("lost")

    monkeypatch.setattr(tuner, "task_if_any", broken)
    mixture = Mixture(load_config({**GIVEN, "cache": {"dir": str(tmp_path)}}))
    value = torch.randn(4, 3)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(torch.sin, backend=mixture)(value), value.sin())
    assert any("KeyError: 'lost'" in event.detail for event in mixture.report().events)
    strict = Mixture(load_config({**GIVEN, "cache": {"dir": str(tmp_path)}, "on_failure": "raise"}))
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception, match="lost"):
        torch.compile(torch.sin, backend=strict)(value)


@pytest.mark.parametrize("asked, measured", [("off", "off"), ("sampled", "first_call"), ("always", "first_call")])
def test_calls_that_are_timed_are_not_held_against_eager(asked: str, measured: str) -> None:
    """Eager alone would be timed without its checks, and win."""
    config = tuner.measured_under(load_config({"search": {"mode": "measure"}, "verify": {"when": asked}}))
    assert (config.verify.when, config.search.mode) == (measured, "estimate")
