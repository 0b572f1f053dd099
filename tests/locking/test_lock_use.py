"""Graphs that are placed as a lock file says: in every phase, in another process's caches, with nothing searched."""

from __future__ import annotations

import pytest
import torch
from locking_bench import VALUE, Bench, Layer, Run, Small, edit, error_of, locked, owners
from torch import nn

from mixbackend.locking.reading import read_lock


def test_another_cache_and_no_search(bench: Bench, small: Small) -> None:
    first = locked(bench, small)
    second = bench.run(small, [VALUE], cache="empty", searching=False, **bench.frozen(), on_failure="raise")
    assert second.plans() == first.plans() and not second.told()
    torch.testing.assert_close(second.outputs[0], small(VALUE))
    (graph,) = second.report.graphs
    assert graph.plan.search == "fixed" and graph.plan.refusals == first.report.graphs[0].plan.refusals


def test_a_plan_that_no_search_would_find(bench: Bench, small: Small) -> None:
    first = locked(bench, small)
    text = bench.lock.read_text()
    bench.lock.write_text(
        "\n".join("    backend: eager" if "    backend: " in line else line for line in text.splitlines())
    )
    run = bench.run(small, [VALUE], cache="empty", searching=False, **bench.frozen(), on_failure="raise")
    assert owners(run) == {"eager"} != owners(first)
    torch.testing.assert_close(run.outputs[0], small(VALUE))


def test_two_shapes_are_two_graphs(bench: Bench, small: Small) -> None:
    values = [torch.randn(4, 64), torch.randn(6, 64)]
    first = bench.run(small, values, dynamic=False)
    assert len(bench.write(first).graphs) == 2
    second = bench.run(
        small, values, cache="empty", searching=False, dynamic=False, **bench.frozen(), on_failure="raise"
    )
    assert second.plans() == first.plans()
    text = error_of(lambda: bench.run(small, [torch.randn(5, 64)], dynamic=False, **bench.frozen()))
    assert '- input: activation tensor(float32, [4, 64], [64, 1], "cpu")' in text
    assert '+ input: activation tensor(float32, [5, 64], [64, 1], "cpu")' in text


def test_dynamic_shapes(bench: Bench, small: Small) -> None:
    first = bench.run(small, [torch.randn(8, 64)], dynamic=True)
    (entry,) = bench.write(first).graphs
    assert entry.dynamic and entry.inputs == ('activation tensor(float32, [s0, 64], [64, 1], "cpu")',)
    values = [torch.randn(12, 64), torch.randn(3, 64)]
    second = bench.run(
        small, values, cache="empty", searching=False, dynamic=True, **bench.frozen(), on_failure="raise"
    )
    assert second.plans() == first.plans()
    for value, output in zip(values, second.outputs, strict=True):
        torch.testing.assert_close(output, small(value))


def test_training(bench: Bench) -> None:
    torch.manual_seed(0)
    model, reference = Small(), Small()
    reference.load_state_dict(model.state_dict())
    first = bench.run(model, [VALUE], train=True)
    file = bench.write(first)
    assert [graph.phase for graph in file.graphs] == ["forward", "backward"] and len(file.joints) == 1
    model.zero_grad()
    second = bench.run(model, [VALUE], cache="empty", searching=False, train=True, **bench.frozen(), on_failure="raise")
    assert second.plans() == first.plans() and not second.told()
    reference(VALUE).square().mean().backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_another_cut_is_another_backward(bench: Bench) -> None:
    model = Small()
    bench.write(bench.run(model, [VALUE], train=True))
    (joint,) = read_lock(bench.lock).joints
    saved = next(name for name in joint.saved if "gelu" in name)
    edit(bench, (f"{saved}", "aten.gelu.default@0"))
    text = error_of(lambda: bench.run(model, [VALUE], train=True, **bench.frozen()))
    assert "aten.gelu.default@0 should be saved" in text


class Vocabulary(nn.Module):
    """A loss over many classes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 8192)
        self.register_buffer("target", torch.randint(0, 8192, (128,)))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(value), self.target)


def test_what_is_computed_again_is_locked(bench: Bench) -> None:
    torch.manual_seed(0)
    model, value = Vocabulary(), torch.randn(128, 64)
    first = bench.run(model, [value], train=True)
    (joint,) = bench.write(first).joints
    assert [name.partition("@")[0] for name in joint.recomputed] == ["aten._log_softmax.default"]
    (decision,) = first.joint_decisions.values()
    assert read_lock(bench.lock).joints[0].recomputed == decision.recomputed
    model.zero_grad()
    second = bench.run(model, [value], cache="empty", searching=False, train=True, **bench.frozen(), on_failure="raise")
    assert second.plans() == first.plans() and not second.told()
    edit(bench, (f"recomputed: [{decision.recomputed[0]}]", "recomputed: [aten._softmax.default@0]"))
    text = error_of(lambda: bench.run(model, [value], train=True, **bench.frozen()))
    assert "aten._softmax.default@0 should be computed again" in text


def test_images_keep_their_layout(bench: Bench) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()).eval()
    value = torch.randn(1, 3, 32, 32)
    first = locked(bench, model, value)
    other = {"as_traced": "channels_last", "channels_last": "as_traced"}
    layout = read_lock(bench.lock).graphs[0].layout
    second = bench.run(model, [value], cache="empty", searching=False, **bench.frozen(), on_failure="raise")
    assert second.plans() == first.plans()
    assert second.report.graphs[0].layout.chosen == layout == first.report.graphs[0].layout.chosen
    torch.testing.assert_close(second.outputs[0], model(value), rtol=1e-4, atol=1e-5)
    edit(bench, (f"layout: {layout}", f"layout: {other[layout]}"))
    assert "graph does not have there" in error_of(lambda: bench.run(model, [value], **bench.frozen()))


def test_layers_that_share_a_graph_share_the_entry(bench: Bench) -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()).eval() for _ in range(3)]

    def run(cache: str, **settings: object) -> Run:
        torch._dynamo.reset()
        first = bench.run(layers[0], [VALUE], cache=cache, **settings)
        with torch.no_grad():
            for layer in layers[1:]:
                compiled = torch.compile(layer, backend=first.mixture)
                torch.testing.assert_close(compiled(VALUE), layer(VALUE))
        return first

    (entry,) = bench.write(run("cache")).graphs
    again = run("empty", **bench.frozen(), on_failure="raise")
    graphs = again.mixture.report().graphs
    assert len(graphs) == 3 and {graph.plan.regions for graph in graphs} == {again.report.graphs[0].plan.regions}
    assert entry.graph == "inference-0"


def test_measuring_leaves_locked_graphs_alone(bench: Bench, small: Small) -> None:
    first = locked(bench, small)
    again = bench.run(small, [VALUE], cache="empty", searching=False, search={"mode": "measure"})
    assert again.plans() == first.plans() and again.report.graphs[0].tuning is None


def test_bodies_of_repeated_regions_are_locked(bench: Bench, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Layer, "forward", torch.compiler.nested_compile_region(Layer.forward))
    first = bench.run(small, [VALUE])
    bodies = [graph.graph.id for graph in first.report.graphs if "." in graph.graph.id]
    assert bodies and len(bench.write(first).graphs) == len(bodies)
    second = bench.run(small, [VALUE], cache="empty")
    assert second.plans() == first.plans()
    searched = {graph.graph.id: graph.plan.search for graph in second.report.graphs}
    assert all(searched[name] == "fixed" for name in bodies)
    torch.testing.assert_close(second.outputs[0], first.outputs[0])
