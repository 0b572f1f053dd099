"""The contract's form: identity, availability, verdicts without the runtime, stored models, worth of a region."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys

import pytest
import torch

from mixbackend.backends.onnxruntime import OnnxRuntimeBackend, backend
from mixbackend.contracts import DeviceModel, Plan, PlannedRegion, RegionSketch, Supported, check_backend
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph

aten = torch.ops.aten


def test_it_is_a_backend():
    assert check_backend(OnnxRuntimeBackend()).availability().available


def test_missing_package_is_told(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "onnxruntime" else find(name))
    answer = OnnxRuntimeBackend().availability()
    assert not answer.available
    assert "pip install" in answer.reason


@pytest.mark.parametrize(("version", "usable"), [("1.22.1", False), ("1.23.0", True), ("2.0", True), ("0.9", False)])
def test_versions(monkeypatch, version, usable):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    backend.installed_version.cache_clear()
    try:
        answer = OnnxRuntimeBackend().availability()
    finally:
        backend.installed_version.cache_clear()
    assert answer.available is usable
    assert version in (answer.reason + answer.version)


def test_fingerprint_tells_version_and_threads():
    before = torch.get_num_threads()
    first = OnnxRuntimeBackend().fingerprint()
    torch.set_num_threads(before + 1)
    try:
        assert OnnxRuntimeBackend().fingerprint() != first
    finally:
        torch.set_num_threads(before)
    assert importlib.metadata.version("onnxruntime") in first


def test_neither_import_nor_verdict_loads_the_runtime():
    """Planning must not pay for a runtime that may not be chosen."""
    script = (
        "import sys, torch\n"
        "from mixbackend.backends.onnxruntime import OnnxRuntimeBackend\n"
        "from mixbackend.graph.trace import trace_graph\n"
        "backend = OnnxRuntimeBackend(); backend.availability(); backend.fingerprint()\n"
        "_, graph = trace_graph(torch.relu, [torch.ones(3)])\n"
        "print(backend.judge(graph.view(graph.nodes[0].name)))\n"
        "assert not any(name.split('.')[0] == 'onnxruntime' for name in sys.modules), 'loaded'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Supported" in done.stdout


def test_stored_model_gives_the_same_results(workbench):
    function = lambda x, w: (torch.relu(x @ w), x > 0, x.sum().long())  # noqa: E731
    inputs = [torch.randn(4, 8), torch.randn(8, 3)]
    built = workbench.build(function, inputs)
    loaded = OnnxRuntimeBackend().load(built.region, built.compiled.artifact)
    for first, second in zip(built.compiled.run(inputs), loaded.run(inputs), strict=True):
        assert torch.equal(first, second)
    assert "Relu" in loaded.source or "Max" in loaded.source


def test_stored_model_with_numbers():
    """Numbers that are computed outside of a region are passed to it."""
    module, graph = trace_graph(lambda x: torch.zeros(x.shape[0], 2) + x.shape[1], [torch.randn(4, 8)], dynamic=True)
    planned = PlannedRegion("r0", OnnxRuntimeBackend.name, tuple(node.name for node in graph.placed_nodes))
    region = cut_regions(module, graph, Plan(graph.id, graph.phase, True, (planned,)))[0].region
    compiled = OnnxRuntimeBackend().compile(region)
    loaded = OnnxRuntimeBackend().load(region, compiled.artifact)
    arguments = [5 for _ in region.inputs]
    assert torch.equal(loaded.run(arguments)[0], compiled.run(arguments)[0])


@pytest.mark.parametrize("spoiled", [b"", b"not a model", "truncated", "foreign"])
def test_unusable_artifacts_raise(workbench, spoiled):
    built = workbench.build(lambda x: x + 1, [torch.randn(3)])
    other = workbench.build(lambda x, y: (x + y, x > y), [torch.randn(3), torch.randn(3)])
    artifact = {"truncated": built.compiled.artifact[:-40], "foreign": other.compiled.artifact}.get(spoiled, spoiled)
    with pytest.raises(Exception, match=r"."):
        OnnxRuntimeBackend().load(built.region, artifact)


def _sketch(function, *inputs) -> RegionSketch:
    _, graph = trace_graph(function, inputs)
    views = tuple(graph.view(node.name) for node in graph.placed_nodes)
    return RegionSketch(views, (), (), 1e-3)


@pytest.mark.parametrize(
    ("function", "declined"),
    [
        (lambda x: x + 1, True),
        (lambda x: x.t().reshape(-1), True),
        (lambda x: x.clone(), True),
        (lambda x: x @ x, False),
        (lambda x: torch.relu(x + 1), False),
    ],
)
def test_worth_of_a_region(function, declined):
    answer = OnnxRuntimeBackend().decline(_sketch(function, torch.randn(4, 4)))
    assert (answer is not None) is declined
    assert answer is None or answer.code == "region-too-small"


def test_judging_is_quick_and_pure(workbench):
    _, graph = trace_graph(torch.nn.functional.gelu, [torch.randn(4)])
    view = graph.view(graph.nodes[0].name)
    assert workbench.backend.judge(view) == workbench.backend.judge(view) == Supported()


def test_prior_is_for_the_processor_only():
    model = DeviceModel("cpu:test", (("float32", 1e11),), 1e10, 1e6, 1e11, 1e-6, 1)
    rates = OnnxRuntimeBackend().prior(model)
    assert rates is not None
    assert rates.rate("matmul", "float32").flops_per_s <= 1e11
    assert OnnxRuntimeBackend().prior(DeviceModel("cuda:0", (("float32", 1e13),), 1e12, 1e6, 1e13, 1e-6, 1)) is None


def test_no_thread_spins_after_a_call(workbench):
    """A spinning pool would take the cores from torch's own threads."""
    import os
    import time

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        built = workbench.build(lambda a, b: a @ b, [torch.randn(256, 256), torch.randn(256, 256)])
        built(torch.randn(256, 256), torch.randn(256, 256))
        used = sum(os.times()[:2])
        time.sleep(0.3)
        assert sum(os.times()[:2]) - used < 0.15
    finally:
        torch.set_num_threads(before)
