"""Plans compared at the first call on a GPU, without one: who is tried, what is prepared and put back, who runs in the
end, in inference and in training, and what is remembered for whom."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.configuration import load_config
from mixbackend.contracts import BuildSeconds, Plan, PlannedRegion, Traits
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.cost.costs import SessionCosts
from mixbackend.execute.state_restore import Changes, RepeatedCall, repeated, written_inputs
from mixbackend.graph.identity import Captured
from mixbackend.graph.trace import trace_graph
from mixbackend.plan.choice import Choice
from mixbackend.plan.environment import Environment
from mixbackend.select import comparison, comparison_gpu, gpu_block, gpu_memory, tuner
from mixbackend.select.comparison_gpu import GpuHarness
from mixbackend.select.gpu_memory import working_bytes

aten = torch.ops.aten
HARNESS = GpuHarness(60.0, 0, True, ("x",))


def _on_gpu(function, *shapes):
    with fresh_fake_mode():
        values = [torch.empty(shape, device="cuda") for shape in shapes]
    return trace_graph(function, values)[1]


# --- what is read off a graph


def test_inputs_that_are_written_through_views_count():
    graph = _on_gpu(lambda x, y, z: (aten.copy_(aten.t(y), aten.t(x)), aten.relu(z)), (4, 4), (4, 4), (4, 4))
    assert written_inputs(graph) == (graph.inputs[1].name,)
    own = _on_gpu(lambda x: aten.copy_(aten.neg(x), x), (4, 4))
    assert written_inputs(own) == ()


def test_working_memory_is_what_lives_at_once():
    mebi = (512, 512)  # of float32
    chain = _on_gpu(lambda x: aten.relu(aten.sigmoid(aten.neg(x))), mebi)
    assert working_bytes(chain) == 2 * 2**20
    kept = _on_gpu(lambda x: (first := aten.neg(x), aten.relu(aten.sigmoid(first))), mebi)
    assert working_bytes(kept) == 3 * 2**20
    views = _on_gpu(lambda x: aten.relu(aten.t(aten.neg(x))), mebi)
    assert working_bytes(views) == 2 * 2**20


@pytest.mark.parametrize(
    ("free_mebi", "rivals", "reason"),
    [(4, 0, ""), (4, 2, "it may take 4 MiB on the GPU, of which 4 MiB are free"), (8, 2, "")],
)
def test_candidates_must_fit_into_free_memory(monkeypatch, free_mebi, rivals, reason):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(gpu_memory, "free_bytes", lambda device: free_mebi * 2**20)
    graph = _on_gpu(lambda x: aten.relu(aten.neg(x)), (512, 512))
    home = SimpleNamespace(graph=graph, plan=SimpleNamespace(estimated_s=1e-3))
    assert HARNESS.why_not(home, [torch.empty(512, 512), 3], rivals) == reason


def test_calls_that_the_user_records_are_left_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert "CUDA graph of the user's" in HARNESS.why_not(SimpleNamespace(), [], 1)


def test_free_memory_counts_what_torch_keeps_unused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    assert gpu_memory.free_bytes(0) == 140


# --- where anything is compared


def _captured(device, phase):
    with fresh_fake_mode():
        module, _ = trace_graph(lambda x: aten.relu(x), [torch.empty(4, device=device)])
    return Captured(module, phase, {}, "graph")


def _environment(records=False, **settings):
    return SimpleNamespace(config=load_config(settings), records=records)


def test_the_gpu_of_a_graph_is_that_of_its_inputs():
    assert comparison.gpu_of(_captured("cuda:1", "inference")) == 1
    assert comparison.gpu_of(_captured("cpu", "inference")) is None


@pytest.mark.parametrize("phase", ["inference", "forward", "backward"])
def test_on_a_gpu_only_patient_modes_compare(phase):
    captured = _captured("cuda", phase)
    assert comparison.harness_for(captured, _environment()) is None
    (name,) = (node.name for node in captured.module.graph.find_nodes(op="placeholder"))
    assert comparison.harness_for(captured, _environment(records=True)) is None
    recorded = _environment(records=True, search={"mode": "measure"})
    assert comparison.harness_for(captured, recorded) == GpuHarness(60.0, 0, True, (name,))
    measuring = _environment(search={"mode": "measure", "first_call_gpu_s": 7.0})
    assert comparison.harness_for(captured, measuring) == GpuHarness(7.0, 0, False, (name,))
    never = _environment(records=True, search={"mode": "measure", "first_call_gpu_s": 0.0})
    assert comparison.harness_for(captured, never) is None


@pytest.mark.parametrize("phase", ["inference", "forward", "backward"])
def test_on_the_processor_no_calls_are_made_to_compare(phase):
    assert comparison.harness_for(_captured("cpu", phase), _environment(records=True)) is None


# --- who is tried


def _plan(*regions, alone=()):
    planned = tuple(PlannedRegion(f"r{i}", owner, (f"n{i}",), estimated_s=s) for i, (owner, s) in enumerate(regions))
    return Plan("g", "inference", False, planned, estimated_s=sum(s for _, s in regions), single_backend_s=alone)


def _backend(name, devices, build_s):
    traits = Traits(reference=name == "eager", device_types=frozenset(devices))
    return SimpleNamespace(name=name, traits=lambda: traits, build_seconds=lambda device: BuildSeconds(build_s, 1.0))


def _rivals(
    plan,
    without=lambda choice: _plan(("a", 1e-3)),
    probed=("a", "b", "c", "d"),
    function=None,
    harness=HARNESS,
    devices=("cpu",),
    build_s=0.0,
):
    graph = _on_gpu(function or (lambda x: aten.relu(x)), (8, 8))
    home = SimpleNamespace(graph=graph, plan=plan, layout=SimpleNamespace(other=None))
    names = ("a", "b", "c", "d", "eager")
    backends = [_backend(name, devices, build_s) for name in names]
    planner = SimpleNamespace(
        backends=backends,
        comparable=lambda graph: frozenset(probed),
        place=lambda graph, choice: without(choice),
    )
    return harness.rivals(home, planner)


def test_the_nearest_alone_come_first_then_mixtures_without_owners():
    alone = (("a", 1.6e-3), ("b", 1.5e-3), ("c", 9e-3), ("d", 1.7e-3), ("eager", 2e-3))
    plan = _plan(("a", 6e-4), ("c", 3e-4), ("eager", 5e-5), ("d", 5e-5), alone=alone)
    asked = []

    def without(choice):
        asked.append(choice.backends)
        if choice.every:
            return _plan(("a", 5e-4), ("b", 5e-4))
        return _plan(("b", 5e-4), ("d", 6e-4) if "c" in choice.backends else ("a", 6e-4))

    found = _rivals(plan, without)
    nearest = (Choice(single="b"), Choice(single="a"), Choice(single="d"))
    assert found == (*nearest, Choice(every=True), Choice(("b", "c", "d")), Choice(("a", "b", "d")))
    # Whoever owns little of the plan is not left out.
    assert asked == [(), ("b", "c", "d"), ("a", "b", "d")]


def test_a_mixture_from_which_nothing_was_dropped_is_no_rival():
    plan = _plan(("a", 6e-4), ("c", 4e-4), alone=(("a", 1.6e-3),))
    assert _rivals(plan, lambda choice: plan if choice.every else _plan(("a", 9e-3))) == (Choice(single="a"),)


def test_equal_plans_are_tried_once():
    plan = _plan(("a", 6e-4), ("c", 4e-4), alone=(("a", 1.6e-3), ("b", 1.5e-3)))
    assert _rivals(plan, lambda choice: _plan(("b", 1e-3))) == (Choice(single="b"), Choice(single="a"))
    same = _rivals(plan, lambda choice: _plan(("b", 6e-4), ("d", 5e-4)))
    assert same[2:] == (Choice(every=True),)
    assert _rivals(plan, lambda choice: plan)[2:] == ()


def test_a_single_backends_own_plan_is_not_tried_again():
    plan = _plan(("a", 1e-3), alone=(("a", 1e-3), ("b", 1.5e-3)))
    assert _rivals(plan, lambda choice: _plan(("b", 1.5e-3))) == (Choice(single="b"),)


def test_who_was_never_measured_is_tried_if_it_is_built_quickly():
    plan = _plan(("a", 1e-3), alone=(("a", 1e-3), ("b", 1.5e-3), ("eager", 1.4e-3)))
    found = {
        (devices, build_s): _rivals(plan, probed=(), devices=devices, build_s=build_s)
        for devices in (("cpu",), ("cuda",))
        for build_s in (29.0, 30.0)
    }
    assert found.pop((("cuda",), 29.0)) == (Choice(single="b"),)
    assert set(found.values()) == {()}


def test_who_is_far_or_was_never_measured_is_not_tried():
    plan = _plan(("a", 5e-4), ("b", 5e-4), alone=(("b", 1.2e-3), ("c", 1.3e-3), ("d", 2.6e-3)))
    far = _plan(("c", 2e-3), ("d", 2e-3))
    assert _rivals(plan, lambda choice: far, probed=("a", "c", "d")) == (Choice(single="c"),)


@pytest.mark.parametrize(
    ("function", "harness"),
    [
        (lambda x: aten.copy_(x, aten.relu(x)), GpuHarness(60.0, 0, True, ("other",))),
        (lambda x: aten.relu(x), GpuHarness(60.0, 1, True, ("x",))),
    ],
    ids=["writes into what is not the caller's", "another GPU"],
)
def test_graphs_that_cannot_be_compared(function, harness):
    plan = _plan(("a", 1e-3), alone=(("a", 1e-3), ("b", 1.1e-3)))
    assert _rivals(plan, function=function, harness=harness) == ()
    assert _rivals(plan) != ()


def test_small_graphs_are_not_compared():
    assert _rivals(_plan(("a", 4e-5), alone=(("b", 4.1e-5),))) == ()


def test_dropout_may_be_compared():
    plan = _plan(("a", 1e-3), alone=(("a", 1e-3), ("b", 1.1e-3)))
    assert _rivals(plan, function=lambda x: aten.native_dropout(x, 0.5, True)[0])[0] == Choice(single="b")


# --- what is prepared, and put back


@pytest.fixture
def log(monkeypatch):
    """What was entered and left, in order."""
    entries = []

    @contextlib.contextmanager
    def entered(name):
        entries.append(f"enter {name}")
        yield
        entries.append(f"leave {name}")

    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: entered(f"random {devices}"))
    monkeypatch.setattr(comparison_gpu, "cuda_graphs_apart", lambda device: entered(f"apart {device}"))
    return entries


@pytest.mark.parametrize("replayed", [True, False])
def test_what_candidates_change_is_put_back(log, replayed):
    graph = _on_gpu(lambda x, y: aten.copy_(y, x), (2, 2), (2, 2))
    names = tuple(item.name for item in graph.inputs)
    placed = SimpleNamespace(graph=graph, rehearse=lambda on: log.append(f"rehearse {on}"))
    values = [torch.zeros(2, 2), torch.ones(2, 2)]
    harness = GpuHarness(60.0, 0, replayed, names)
    with contextlib.suppress(KeyError), harness.prepared([placed], values):
        for value in values:
            value.fill_(7.0)
        raise KeyError
    assert (values[0].unique().tolist(), values[1].unique().tolist()) == ([7.0], [1.0])
    assert log[0] == "enter random [0]"
    assert ("enter apart 0" in log) is replayed
    assert [entry for entry in log if entry.startswith("rehearse")] == ["rehearse True", "rehearse False"] * replayed


def test_recordings_end_before_they_are_made_for_good(log):
    graph = _on_gpu(lambda x: aten.relu(x), (2, 2))
    placed = SimpleNamespace(graph=graph, rehearse=lambda on: log.append(f"rehearse {on}"))
    with HARNESS.prepared([placed], [torch.zeros(2, 2)]):
        log.append("run")
    assert log == [
        "enter random [0]", "rehearse True", "enter apart 0", "run", "leave apart 0", "rehearse False",
        "leave random [0]",
    ]  # fmt: skip


@pytest.mark.parametrize(("call_s", "counts"), [(1e-3, [3, 25]), (0.1, [3])])
def test_a_turn_is_a_block_of_calls(monkeypatch, call_s, counts):
    asked = []

    def by_marks(call, count, before):
        call()
        asked.append(count)
        assert before is None
        return count * call_s

    monkeypatch.setattr(gpu_block, "seconds_by_marks", by_marks)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    values = (1, 2)
    given = []
    call = RepeatedCall(values, Changes())
    assert HARNESS.turn(lambda arguments: given.append(arguments), call) == pytest.approx(call_s)
    assert asked == counts
    assert given == [[1, 2]] * len(counts)


# --- who runs in the end


class Harness(GpuHarness):
    """The real one, but for what only a GPU can do."""

    events: ClassVar[list[str]] = []

    def why_not(self, home, values, rivals):
        return ""

    @contextlib.contextmanager
    def prepared(self, graphs, values):
        self.events.append(f"compare {graphs[-1].graph.phase}")
        with repeated(values, Changes.of_graphs([graph.graph for graph in graphs], self.placeholders)) as call:
            yield call

    def warm(self, run, call):
        call.by(run)()

    def turn(self, run, call):
        again = call.by(run)
        again.put_back()
        begin = time.perf_counter()
        again.run()
        return time.perf_counter() - begin

    def give_back(self):
        self.events.append("give back")


@pytest.fixture
def make(make_mixture, monkeypatch):
    """Makes mixtures that take the processor for a GPU; by default their kernels are replayed."""
    Harness.events.clear()
    monkeypatch.setattr(comparison, "GpuHarness", Harness)
    monkeypatch.setattr(comparison, "gpu_of", lambda captured: 0)
    monkeypatch.setattr(comparison_gpu, "device_of", lambda graph: 0)
    monkeypatch.setattr(comparison_gpu, "LEAST_S", 0.0)
    monkeypatch.setattr(Environment, "device", lambda self, graph: "cuda:0 test")
    monkeypatch.setattr(tuner, "why_untunable", lambda environment: "")
    monkeypatch.setattr(
        SessionCosts, "comparable", lambda self, graph: {item.name for item in self.backends} - {EagerBackend.name}
    )

    def mixture(*backends, records=True, **options):
        torch._dynamo.reset()
        options["search"] = {"mode": "measure", **options.get("search", {})}
        made = make_mixture(*backends, **options)
        made.environment_for = lambda mode, given: made.environment(made.config, records)
        return made

    return mixture


def model(x):
    return (x.exp() + 1.0).relu()


X = torch.randn(8, 8)


def _infer(mixture, value=X):
    with torch.no_grad():
        return torch.compile(model, backend=mixture, dynamic=False)(value)


def _used(mixture):
    return [{region.backend for region in graph.plan.regions} for graph in mixture.report().graphs]


def _told(mixture):
    return [event.detail for event in mixture.report().events if event.kind == "tuning"]


def test_inference_takes_the_quicker_and_the_next_process_knows_it(make, sleeper):
    mixture = make(sleeper("slow", 0.01), sleeper("quick", 0.0))
    torch.testing.assert_close(_infer(mixture), model(X))
    assert _used(mixture) == [{"quick"}]
    assert _told(mixture)[0].startswith("took quick at the first call (quick ")
    assert Harness.events == ["compare inference", "give back"]
    slow = sleeper("slow", 0.01)
    later = make(slow, sleeper("quick", 0.0))
    torch.testing.assert_close(_infer(later), model(X))
    assert (_used(later), _told(later), slow.compiled) == ([{"quick"}], [], [])
    (graph,) = later.report().to_dict()["graphs"]
    assert graph["tuning"]["chosen"] == "quick"


def test_what_was_shown_by_replays_does_not_hold_elsewhere(make, sleeper):
    _infer(make(sleeper("slow", 0.01), sleeper("quick", 0.0)))
    plain = make(sleeper("slow", 0.01), sleeper("quick", 0.0), records=False, search={"mode": "estimate"})
    torch.testing.assert_close(_infer(plain), model(X))
    assert (_used(plain), _told(plain)) == ([{"slow"}], [])


def test_measuring_on_gpus_is_comparing_at_the_first_call(make, sleeper):
    mixture = make(sleeper("slow", 0.01), sleeper("quick", 0.0), records=False, search={"mode": "measure"})
    torch.testing.assert_close(_infer(mixture), model(X))
    assert _used(mixture) == [{"quick"}]
    assert Harness.events == ["compare inference", "give back"]
    # Nothing is replayed here nor there.
    plain = make(sleeper("slow", 0.01), sleeper("quick", 0.0), records=False, search={"mode": "estimate"})
    _infer(plain)
    assert _used(plain) == [{"quick"}]


def test_forward_and_backward_are_compared_each_at_its_own_first_call(make, sleeper):
    mixture = make(sleeper("slow", 0.01), sleeper("quick", 0.0))
    value = X.clone().requires_grad_()
    result = torch.compile(model, backend=mixture, dynamic=False)(value)
    assert Harness.events == ["compare forward", "give back"]
    result.sum().backward()
    assert Harness.events[2:] == ["compare backward", "give back"]
    expected = X.clone().requires_grad_()
    model(expected).sum().backward()
    torch.testing.assert_close(value.grad, expected.grad)
    assert _used(mixture) == [{"quick"}, {"quick"}]
    assert [detail.startswith("took quick") for detail in _told(mixture)] == [True, True]


def test_a_rival_that_fails_costs_only_itself(make, sleeper):
    mixture = make(sleeper("good", 0.0), sleeper("broken", 0.0, RuntimeError("no")))
    torch.testing.assert_close(_infer(mixture), model(X))
    assert _used(mixture) == [{"good"}]
    assert "broken failed" in _told(mixture)[0]


def test_too_little_memory_is_told_and_nothing_is_remembered(make, sleeper, monkeypatch):
    monkeypatch.setattr(Harness, "why_not", lambda *_: "it may take much")
    quick = sleeper("quick", 0.0)
    mixture = make(sleeper("slow", 0.0), quick)
    torch.testing.assert_close(_infer(mixture), model(X))
    assert (_told(mixture), quick.compiled) == (["not compared with others: it may take much"], [])


def test_running_out_of_memory_ends_the_comparison_alone(make, sleeper, monkeypatch):
    def turn(self, run, values):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Harness, "turn", turn)
    mixture = make(sleeper("slow", 0.0), sleeper("quick", 0.0))
    torch.testing.assert_close(_infer(mixture), model(X))
    assert (_used(mixture), _told(mixture)) == ([{"slow"}], ["not compared with others: CUDA out of memory"])


@pytest.mark.parametrize("options", [{"search": {"first_call_gpu_s": 0.0}}])
def test_it_can_be_switched_off(make, sleeper, options):
    mixture = make(sleeper("slow", 0.001), sleeper("quick", 0.0), **options)
    torch.testing.assert_close(_infer(mixture), model(X))
    assert (_told(mixture), Harness.events) == ([], [])


def test_time_for_compiling_is_bounded(make, sleeper):
    third = sleeper("third", 0.0)
    mixture = make(
        sleeper("first", 0.01),
        sleeper("second", 0.0, compiling_s=0.6),
        third,
        search={"first_call_gpu_s": 0.5},
    )
    _infer(mixture)
    assert (_used(mixture), third.compiled) == ([{"second"}], [])
