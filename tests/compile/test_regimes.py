"""Graphs with symbolic sizes whose best plan depends on the size: the right one runs, and results are eager's."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from regime_cases import LINES, MEETING, WIDTH, BySize, function, named, regimes_of, value_of
from stand_in_backends import Faulty, Loopback, Packer
from tiers import draws
from torch import nn

from mixbackend.compile import sized_graph
from mixbackend.contracts.region_text import read_region_text
from mixbackend.contracts.rehint import symbols_of
from mixbackend.cost import costs as costs_module
from mixbackend.graph.describe import describe
from mixbackend.plan import size_buckets
from mixbackend.plan.regime_search import MOST_REGIMES
from mixbackend.plan.size_buckets import size_reader


@pytest.fixture(autouse=True)
def by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: BySize(lines=LINES))


@pytest.fixture
def small() -> Any:
    return named(Loopback, "small")


@pytest.fixture
def large() -> Any:
    return named(Loopback, "large")


def test_the_switch_is_where_the_costs_meet(make_mixture: Any, small: Any, large: Any) -> None:
    mixture = make_mixture(small, large)
    compiled = torch.compile(function, backend=mixture)
    compiled(value_of(16))
    low, high = regimes_of(mixture)
    assert (low["first"], high["last"]) == (0, None)
    assert low["last"] == high["first"] - 1
    assert MEETING <= high["first"] <= 1.1 * MEETING
    assert [low["built"], high["built"]] == [True, False]
    assert [region["backend"] for region in high["regions"]] == ["large"]
    assert (len(small.compiled), len(large.compiled)) == (1, 0), "nothing is compiled for sizes that do not come"
    assert "not needed so far" in str(mixture.report())

    switch = high["first"]
    for rows in (2, switch - 1, switch, switch + 1, 4 * switch, switch - 1, 3):
        calls = small.calls, large.calls
        value = value_of(rows)
        torch.testing.assert_close(compiled(value), function(value))
        ran = small.calls - calls[0], large.calls - calls[1]
        assert ran == ((1, 0) if rows < switch else (0, 1)), rows
    assert (len(small.compiled), len(large.compiled)) == (1, 1)
    assert [item["built"] for item in regimes_of(mixture)] == [True, True]
    report = mixture.report().to_dict()
    assert len(report["graphs"]) == 1
    assert [region["backend"] for region in report["graphs"][0]["regions"]] == ["small"]


def test_dynamo_compiles_as_often_as_with_aot_eager(make_mixture: Any, small: Any, large: Any) -> None:
    counts = []
    for backend in ("aot_eager", make_mixture(small, large)):
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
        compiled = torch.compile(function, backend=counter)
        for rows in (4, 9, 2, 100, 700, 5000, 3, 1, 0):
            value = torch.randn(rows, WIDTH)
            torch.testing.assert_close(compiled(value), function(value))
        counts.append(counter.frame_count)
    assert counts[0] == counts[1]


def test_equal_plans_need_no_dispatcher(make_mixture: Any, small: Any) -> None:
    mixture = make_mixture(small)
    torch.compile(function, backend=mixture, dynamic=True)(torch.randn(16, WIDTH))
    assert regimes_of(mixture) == []
    assert [row.sized.buckets for graph in mixture._graphs for row in graph.rows] == [1]


def test_static_graphs_are_not_searched(make_mixture: Any, small: Any, large: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(size_buckets, "find_ladder", lambda *arguments: pytest.fail("searched"))
    mixture = make_mixture(small, large)
    torch.compile(function, backend=mixture, dynamic=False)(torch.randn(16, WIDTH))
    assert regimes_of(mixture) == []


def test_two_symbols_are_multiplied(make_mixture: Any, small: Any, large: Any) -> None:
    mixture = make_mixture(small, large)
    compiled = torch.compile(function, backend=mixture, dynamic=True)
    compiled(torch.randn(5, 7))
    low, high = regimes_of(mixture)
    assert low["quantity"].count("*") == 1
    for rows, columns in ((2, 3), (3, high["first"]), (high["first"], 3), (40, 50), (31, 32)):
        calls = large.calls
        value = torch.randn(rows, columns)
        torch.testing.assert_close(compiled(value), function(value))
        assert large.calls - calls == (rows * columns >= high["first"]), (rows, columns)


@pytest.mark.parametrize("weights", ["auto", "live"])
def test_weight_updates_are_seen_in_every_regime(make_mixture: Any, weights: str) -> None:
    packers = [named(Packer, name) for name in ("small", "large")]
    mixture = make_mixture(*packers, weights=weights)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).eval()
    compiled = torch.compile(model, backend=mixture, dynamic=True)
    values = [torch.randn(rows, WIDTH) for rows in (8, 4000, 9, 4001)]
    with torch.no_grad():
        for update in range(3):
            for value in values:
                torch.testing.assert_close(compiled(value), model(value))
            for parameter in model.parameters():
                parameter.mul_(0.5 + update)
    assert len(regimes_of(mixture)) == 2
    assert all(packer.calls > 0 for packer in packers)
    assert all(packer.binds == (3 if weights == "auto" else 0) for packer in packers), "one copy per plan and update"


def test_layers_that_share_a_graph_share_its_regimes(make_mixture: Any, monkeypatch: Any) -> None:
    packers = [named(Packer, name) for name in ("small", "large")]
    searches = []
    search = size_buckets.find_ladder
    monkeypatch.setattr(size_buckets, "find_ladder", lambda *given: searches.append(1) or search(*given))
    mixture = make_mixture(*packers)
    layers = [nn.Linear(WIDTH, WIDTH).eval() for _ in range(3)]
    run = torch.compile(lambda layer, value: layer(value).tanh(), backend=mixture, dynamic=True)
    with torch.no_grad():
        for rows in (8, 4000, 16):
            for layer in layers:
                value = torch.randn(rows, WIDTH)
                torch.testing.assert_close(run(layer, value), layer(value).tanh())
    rows = [row for graph in mixture._graphs for row in graph.rows]
    assert len(rows) >= 1 and all(row.sized.buckets > 1 for row in rows)
    assert len(searches) <= len(mixture._graphs)


def test_training_has_regimes_forward_and_backward(make_mixture: Any, small: Any, large: Any) -> None:
    mixture = make_mixture(small, large)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend=mixture, dynamic=True)
    for rows in (64, 5000, 7, 240, 4000):
        value = torch.randn(rows, WIDTH)
        for run in (compiled, reference):
            run(value).square().mean().backward()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
    graphs = mixture.report().to_dict()["graphs"]
    assert [graph["phase"] for graph in graphs] == ["forward", "backward"]
    assert all([item["built"] for item in graph["regimes"]] == [True, True] for graph in graphs)


def test_a_failing_regime_is_repaired_and_the_others_stay(make_mixture: Any, small: Any) -> None:
    class Large(Faulty):
        name = "large"

    mixture = make_mixture(small, Large(run_error=RuntimeError("no room")), on_failure="repair")
    compiled = torch.compile(function, backend=mixture, dynamic=True)
    for rows in (8, 4000, 5000, 9):
        value = torch.randn(rows, WIDTH)
        torch.testing.assert_close(compiled(value), function(value))
    low, high = regimes_of(mixture)
    assert [region["backend"] for region in low["regions"]] == ["small"]
    assert [region["backend"] for region in high["regions"]] == ["small"]
    kinds = [(event.kind, event.graph) for event in mixture.report().events]
    assert kinds == [("quarantine", f"inference-0@{high['first']}"), ("repair", f"inference-0@{high['first']}")]


def test_a_regime_that_cannot_be_built_keeps_the_plan_of_the_first_call(
    make_mixture: Any, small: Any, large: Any, monkeypatch: Any
) -> None:
    mixture = make_mixture(small, large, on_failure="repair")
    compiled = torch.compile(function, backend=mixture, dynamic=True)
    compiled(torch.randn(8, WIDTH))
    tries = []

    def broken(*arguments: Any, **keywords: Any) -> Any:
        tries.append(1)
        raise RuntimeError("no memory for another plan")

    monkeypatch.setattr(sized_graph, "build", broken)
    for rows in (4000, 5000):
        value = torch.randn(rows, WIDTH)
        torch.testing.assert_close(compiled(value), function(value))
    assert len(tries) == 1
    assert [item["built"] for item in regimes_of(mixture)] == [True, False]
    (event,) = mixture.report().events
    assert event.kind == "fallback"
    assert "no memory for another plan" in event.detail


def test_a_regime_that_cannot_be_built_raises_if_that_is_wanted(
    make_mixture: Any, small: Any, large: Any, monkeypatch: Any
) -> None:
    mixture = make_mixture(small, large)
    compiled = torch.compile(function, backend=mixture, dynamic=True)
    compiled(torch.randn(8, WIDTH))

    def broken(*arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("no memory for another plan")

    monkeypatch.setattr(sized_graph, "build", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        compiled(torch.randn(4000, WIDTH))


def test_threads_build_a_regime_once(make_mixture: Any, small: Any, large: Any) -> None:
    mixture = make_mixture(small, large)
    compiled = torch.compile(function, backend=mixture, dynamic=True)
    compiled(torch.randn(8, WIDTH))
    start = threading.Barrier(8)
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        try:
            value = torch.randn(4000 + number, WIDTH)
            start.wait()
            for _ in range(5):
                torch.testing.assert_close(compiled(value), function(value))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(large.compiled) == 1


def test_a_regime_is_built_in_the_middle_of_inference_mode_and_autocast(make_mixture: Any) -> None:
    packers = [named(Packer, name) for name in ("small", "large")]
    mixture = make_mixture(*packers)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).eval()
    compiled = torch.compile(model, backend=mixture, dynamic=True)
    with torch.inference_mode():
        for rows in (8, 4000, 9, 5000):
            value = torch.randn(rows, WIDTH)
            torch.testing.assert_close(compiled(value), model(value))
    assert [item["built"] for item in regimes_of(mixture)] == [True, True]


UNARY: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.sin,
    torch.tanh,
    torch.relu,
    lambda value: value * 2 + 1,
    lambda value: value.transpose(0, 1).contiguous().transpose(0, 1),
    lambda value: value - value.mean(0, keepdim=True),
    lambda value: torch.cat([value, value], 0)[: value.shape[0]],
    lambda value: value.softmax(-1),
)


@settings(deadline=None, max_examples=draws(5, 12))
@given(
    ops=st.lists(st.sampled_from(range(len(UNARY))), min_size=1, max_size=5),
    sizes=st.lists(st.integers(2, 3000), min_size=2, max_size=6),
    lines=st.lists(st.tuples(st.floats(1e-6, 1e-3), st.floats(1e-9, 1e-6)), min_size=3, max_size=3),
)
def test_random_graphs_at_random_sizes(
    ops: list[int], sizes: list[int], lines: list[tuple[float, float]], tmp_path_factory: Any
) -> None:
    from mixbackend.backends.eager import EagerBackend
    from mixbackend.compile.mixture import Mixture
    from mixbackend.configuration import load_config
    from mixbackend.registry import isolated_registry

    def chain(value: torch.Tensor) -> torch.Tensor:
        for op in ops:
            value = UNARY[op](value)
        return value

    names = ("one", "two", "eager")
    backends = [named(Loopback, name) for name in names[:2]]
    with isolated_registry(*backends, EagerBackend()), pytest.MonkeyPatch.context() as patched:
        costs = BySize(lines=dict(zip(names, lines, strict=True)))
        patched.setattr(costs_module, "cost_model", lambda *arguments, **keywords: costs)
        torch._dynamo.reset()
        cache = {"dir": str(tmp_path_factory.mktemp("cache"))}
        mixture = Mixture(load_config({"backends": list(names), "cache": cache, "on_failure": "raise"}))
        compiled = torch.compile(chain, backend=mixture, dynamic=True)
        for rows in sizes:
            value = torch.randn(rows, WIDTH)
            torch.testing.assert_close(compiled(value), chain(value))
        for graph in mixture.report().to_dict()["graphs"]:
            assert len(graph["regimes"]) <= MOST_REGIMES
            for regime in graph["regimes"]:
                placed = [name for region in regime["regions"] for name in region["nodes"]]
                assert len(placed) == len(set(placed)) == graph["nodes"]


def graph_of(*metas: str) -> tuple[torch.fx.GraphModule, Any]:
    """A graph with these inputs, which are read as the texts of regions say."""
    lines = [f"%{place} = input({meta})" for place, meta in enumerate(metas)]
    text = "\n".join(["mixbackend-region 1 backward", *lines, "symbol(s0, size, 2, none)", "symbol(s1, size, 2, none)"])
    region = read_region_text(f"{text}\n# hint s0 6\n# hint s1 9\n")
    return region.graph_module, describe(region.graph_module, "backward", "g", {})


@pytest.mark.parametrize(
    ("metas", "arguments", "sizes"),
    [
        (["symbol, s0", "symbol, s1"], [30, 40], [30, 40]),
        (['saved, tensor(float32, [4, s0, s1], [1, 1, 1], "cpu")'], [torch.empty(4, 30, 40)], [30, 40]),
        (['saved, tensor(float32, [s0], [1], "cpu")', "symbol, s1"], [torch.empty(30), 40], [30, 40]),
    ],
)
def test_sizes_are_read_off_numbers_and_tensors(metas: list[str], arguments: list[Any], sizes: list[int]) -> None:
    """Backward graphs may have the sizes in saved tensors alone."""
    module, graph = graph_of(*metas)
    symbols = list(symbols_of(graph))
    by_hint = {size.hint: symbol for symbol, size in symbols_of(graph).items()}
    assert [size_reader(module, graph, [by_hint[hint]])(arguments) for hint in (6, 9)] == sizes
    assert size_reader(module, graph, symbols)(arguments) == sizes[0] * sizes[1]


def test_a_size_that_no_input_shows_is_told() -> None:
    module, graph = graph_of('saved, tensor(float32, [mul(2, s0), s1], [1, 1], "cpu")')
    hidden = list(graph.inputs[0].meta.shape[0].expression.free_symbols)
    with pytest.raises(ValueError, match="no input shows"):
        size_reader(module, graph, hidden)
