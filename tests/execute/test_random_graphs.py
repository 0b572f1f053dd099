"""Random graphs, random verdicts, random costs, random legal orders: the stitched result is eager's."""

from __future__ import annotations

import random
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from tiers import draws

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import (
    CostModel,
    Estimate,
    OpView,
    Plan,
    PlannedRegion,
    Supported,
    TensorMeta,
    Unsupported,
    Verdict,
    find_problems,
    refuse_special,
    taking_effects,
)
from mixbackend.execute.stitch import stitch
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import place

ops = torch.ops.aten

UNARY = (
    lambda x: x.sin(),
    lambda x: x.t().contiguous(),
    lambda x: x.relu().t(),
    lambda x: x.softmax(-1),
    lambda x: x.sum(0, keepdim=True).expand(6, 6),
    lambda x: torch.nn.functional.layer_norm(x, (6,)),
    lambda x: x.reshape(-1)[:36].reshape(6, 6) * 2,
    lambda x: x.split(3, 1)[1].repeat(1, 2),
    lambda x: torch.cat([x, x.neg()], 0)[3:9],
)
BINARY = (lambda x, y: x + y, lambda x, y: x @ y * 0.1, lambda x, y: torch.where(x > y, x, y.exp().clamp(max=4)))


class RandomCosts(CostModel):
    """Costs drawn once per question."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def _draw(self, *question: object) -> float:
        return random.Random(repr((self._seed, question))).random() * 1e-5

    def op(self, backend: str, view: OpView) -> Estimate:
        return Estimate(self._draw("op", backend, view.node.name), "prior")

    def read(self, backend: str, meta: TensorMeta) -> float:
        return self._draw("read", backend) / 50

    def write(self, backend: str, meta: TensorMeta) -> float:
        return self._draw("write", backend) / 50

    def crossing(self, producer: str, consumer: str, meta: TensorMeta) -> float:
        return self._draw("crossing", producer, consumer) / 20

    def entry(self, backend: str) -> float:
        return self._draw("entry", backend) / 5


def picky(loopback_class: type, name: str, seed: int):
    """A loopback that refuses a third of the operators."""

    class Picky(loopback_class):
        def judge(self, view: OpView) -> Verdict:
            if random.Random(f"{seed} {name} {view.op}").random() < 0.33:
                return Unsupported("declined", "not today")
            return refuse_special(view) or Supported()

    Picky.name = name
    return Picky()


def build(recipe: Sequence[tuple[int, int, int]], effects: bool):
    """A function that applies a recipe to a growing list of values."""

    def function(first, second, buffer):
        values = [first, second]
        for kind, left, right in recipe:
            x, y = values[left % len(values)], values[right % len(values)]
            choice = kind % (len(UNARY) + len(BINARY))
            values.append(UNARY[choice](x) if choice < len(UNARY) else BINARY[choice - len(UNARY)](x, y))
            if effects and kind % 5 == 0:
                values.append(torch.rand(6, 6) + values[-1])
            if effects and kind % 7 == 0:
                values.append(buffer * 2)
                ops.copy_.default(buffer, values[-1] + 1)
        return tuple(values[2:])

    return function


def run(function, seed: int):
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(6, 6, generator=generator) for _ in range(3)]
    torch.manual_seed(seed)
    outputs = function(*inputs)
    return [*outputs, inputs[2], torch.get_rng_state()]


RECIPES = st.lists(st.tuples(*[st.integers(0, 1000)] * 3), min_size=1, max_size=12)


def stitched(module, graph, plan, backends):
    bound = cut_regions(module, graph, plan)
    by_name = {backend.name: backend for backend in backends}
    calls = [by_name[piece.planned.backend].compile(piece.region).run for piece in bound]
    generated = stitch(module, graph, bound, calls)
    return lambda *inputs: generated.run(list(inputs))


def assert_equal(mine, eager):
    assert len(mine) == len(eager)
    for result, expected in zip(mine, eager, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@given(recipe=RECIPES, seed=st.integers(0, 10_000), effects=st.booleans())
@settings(
    max_examples=draws(12, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(recipe=[(0, 52, 239), (0, 694, 207), (0, 0, 87)], seed=4096, effects=True)  # a circle through order alone
def test_placed_and_stitched_equals_eager(loopback, recipe, seed, effects):
    function = build(recipe, effects)
    module, graph = trace_graph(function, [torch.randn(6, 6) for _ in range(3)])
    backends = [picky(type(loopback), "first", seed), picky(type(loopback), "second", seed), EagerBackend()]
    plan = place(graph, backends, RandomCosts(seed))
    assert find_problems(graph, plan.regions, taking_effects(backends)) == []
    assert_equal(run(stitched(module, graph, plan, backends), seed), run(function, seed))


def shuffled(graph, plan: Plan, seed: int) -> Plan:
    """The same regions in another legal order, found by trying moves."""
    regions = list(plan.regions)
    source = random.Random(seed)
    for _ in range(30):
        candidate: list[PlannedRegion] = list(regions)
        candidate.insert(source.randrange(len(candidate)), candidate.pop(source.randrange(len(candidate))))
        if not find_problems(graph, candidate, ("eager",)):
            regions = candidate
    return Plan(plan.graph_id, plan.phase, plan.dynamic, tuple(regions))


@given(recipe=RECIPES, seed=st.integers(0, 10_000))
@settings(
    max_examples=draws(8, 40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_legal_order_gives_equal_results_random_state_and_mutations(loopback, recipe, seed):
    function = build(recipe, effects=True)
    module, graph = trace_graph(function, [torch.randn(6, 6) for _ in range(3)])
    one_each = tuple(PlannedRegion(f"r{index}", "eager", (node.name,)) for index, node in enumerate(graph.placed_nodes))
    plan = Plan(graph.id, graph.phase, graph.dynamic, _with_getitems(graph, one_each))
    other = shuffled(graph, plan, seed)
    backends = [EagerBackend()]
    assert_equal(run(stitched(module, graph, other, backends), seed), run(function, seed))


def _with_getitems(graph, regions: tuple[PlannedRegion, ...]) -> tuple[PlannedRegion, ...]:
    """Getitems move into the region of their producer."""
    home: dict[str, list[str]] = {}
    for region in regions:
        node = graph.node_by_name[region.nodes[0]]
        if node.op == "getitem":
            home[node.references()[0]].append(node.name)
        else:
            home[node.name] = [node.name]
    return tuple(PlannedRegion(f"r{index}", "eager", tuple(names)) for index, names in enumerate(home.values()))


def test_the_shuffle_really_changes_orders(loopback):
    function = build([(0, 0, 0), (3, 1, 1), (5, 0, 1), (7, 1, 0)], effects=True)
    _, graph = trace_graph(function, [torch.randn(6, 6) for _ in range(3)])
    one_each = tuple(PlannedRegion(f"r{index}", "eager", (node.name,)) for index, node in enumerate(graph.placed_nodes))
    plan = Plan(graph.id, graph.phase, graph.dynamic, _with_getitems(graph, one_each))
    orders = {tuple(region.id for region in shuffled(graph, plan, seed).regions) for seed in range(5)}
    assert len(orders) > 1


def test_a_plan_that_breaks_effect_order_is_refused():
    def function(first, second, buffer):
        before = buffer * 2
        ops.copy_.default(buffer, first)
        return before, second

    _, graph = trace_graph(function, [torch.randn(6, 6) for _ in range(3)])
    names = [node.name for node in graph.placed_nodes]
    wrong = tuple(PlannedRegion(f"r{index}", "eager", (name,)) for index, name in enumerate(reversed(names)))
    assert any("needs it" in problem for problem in find_problems(graph, wrong, ("eager",)))


@pytest.mark.parametrize("seed", range(3))
def test_equal_input_gives_an_equal_plan(loopback, seed):
    function = build([(seed * 11 + i, i, i + 1) for i in range(8)], effects=True)
    plans = []
    for _ in range(2):
        _, graph = trace_graph(function, [torch.randn(6, 6) for _ in range(3)])
        backends = [picky(type(loopback), "first", seed), EagerBackend()]
        plans.append(place(graph, backends, RandomCosts(seed)))
    assert plans[0] == plans[1]
    assert hash(plans[0]) == hash(plans[1])
    assert str(plans[0]) == str(plans[1])
