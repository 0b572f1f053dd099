"""Plans for what is called a few times: compilers have to be worth their time."""

from __future__ import annotations

import pytest
import torch

from mixbackend import auto
from mixbackend.compile.mixture import Mixture
from mixbackend.contracts import BuildSeconds, Estimate
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.amortized import CALLS, AmortizedCosts


class Flat:
    """One second for an op and a region, nothing else; a measurement of every region."""

    def op(self, backend, view):
        return Estimate(1.0, "probed")

    def read(self, backend, meta):
        return 0.25

    write = read

    def weight(self, backend, meta):
        return 0.5

    def crossing(self, producer, consumer, meta):
        return 0.5

    def entry(self, backend):
        return 1.0

    def switch(self, backend):
        return 0.125


@pytest.fixture
def views():
    _, graph = trace_graph(lambda value: torch.relu(value).reshape(-1), [torch.randn(3, 4)])
    return {graph.view(node.name).op_class: graph.view(node.name) for node in graph.nodes}


def test_calls_pay_their_share_of_building(views):
    costs = AmortizedCosts(Flat(), {"slow": BuildSeconds(30.0, 2.0), "ready": BuildSeconds()})
    meta = views["pointwise"].output_tensors[0]
    assert costs.op("slow", views["pointwise"]) == Estimate(1.0 + 2.0 / CALLS, "probed")
    assert costs.op("slow", views["view"]).seconds == costs.op("ready", views["pointwise"]).seconds == 1.0
    assert costs.entry("slow") == 1.0 + 30.0 / CALLS and costs.entry("ready") == 1.0
    assert (costs.read("slow", meta), costs.weight("slow", meta), costs.write("slow", meta)) == (0.25, 0.5, 0.25)
    assert costs.crossing("slow", "ready", meta) == 0.5
    assert costs.switch("slow") == 0.125


def test_times_below_zero_are_refused():
    for wrong in ({"region_s": -1.0}, {"op_s": float("nan")}):
        with pytest.raises(ValueError, match="is no time"):
            BuildSeconds(**wrong)


def _owners(objective: str, folder) -> set[str]:
    torch._dynamo.reset()
    settings = {"backends": ["inductor", "eager"], "objective": objective, "cache": {"dir": str(folder)}}
    mixture = auto(settings)
    assert isinstance(mixture, Mixture)
    value = torch.randn(64, 4096)
    run = torch.compile(lambda value: torch.softmax(value.sin().exp() * 2 + 1, -1).tanh(), backend=mixture)
    with torch.no_grad():
        torch.testing.assert_close(run(value), torch.softmax(value.sin().exp() * 2 + 1, -1).tanh())
    return {region.backend for graph in mixture.report().graphs for region in graph.plan.regions}


def test_a_compiler_runs_only_what_is_called_often(tmp_path, monkeypatch):
    monkeypatch.setenv("MIXBACKEND_CALIBRATE", "0")
    assert _owners("latency", tmp_path) == {"inductor"}
    assert _owners("compile_time", tmp_path) == {"eager"}
