"""Inductor through the contract: few kernels, for each takes a C++ compiler seconds."""

from __future__ import annotations

import shutil
import sysconfig

import pytest
import torch
from torch._dynamo.utils import counters

from mixbackend.backends.common.compiler import find_compiler
from mixbackend.backends.inductor import InductorBackend
from mixbackend.compile.replay import make_inputs
from mixbackend.contracts import (
    DeviceModel,
    OpView,
    Plan,
    PlannedRegion,
    Region,
    Supported,
    SymbolicSize,
    Unsupported,
    check_backend,
)
from mixbackend.contracts.torch_compat import inductor_handling, operator_by_name
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph, trace_region

aten = torch.ops.aten


def view_of(function, inputs, op: str, dynamic: bool = False) -> OpView:
    _, graph = trace_graph(function, inputs, dynamic=dynamic)
    return graph.view(next(node.name for node in graph.nodes if node.op == op))


def assert_right(region: Region, run, inputs: list) -> list[torch.Tensor]:
    expected = region.graph_module.forward(*inputs)
    outputs = list(run(inputs))
    for mine, eager in zip(outputs, expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=2e-5, atol=2e-5)
        assert mine.shape == eager.shape
        if eager.numel() > 0:
            sizes = zip(mine.shape, mine.stride(), eager.stride(), strict=True)
            assert all(size == 1 or here == there for size, here, there in sizes)
    return outputs


def layer(x, weight, bias, scale):
    normal = aten.native_layer_norm(x, [x.shape[-1]], scale, scale, 1e-5)[0]
    flat = aten.reshape(normal, [x.shape[0] * x.shape[1], x.shape[2]])
    hidden = aten.addmm(bias, flat, aten.t(weight))
    return aten.transpose(aten.gelu(aten.reshape(hidden, [x.shape[0], x.shape[1], -1])), 0, 1), aten.clone(x)


def layer_inputs(batch=2, length=5, width=16, hidden=24):
    return [torch.randn(batch, length, width), torch.randn(hidden, width), torch.randn(hidden), torch.randn(width)]


def test_static_region_with_live_weights_and_fresh_outputs():
    backend = InductorBackend()
    region = trace_region(layer, layer_inputs())
    assert all(isinstance(backend.judge(view), Supported) for view in region.views)
    compiled = backend.compile(region)
    assert compiled.strides == "as_traced"
    assert compiled.preconditions == ()
    assert "def call(" in compiled.source
    inputs = make_inputs(region)
    before = [item.clone() for item in inputs]
    first = assert_right(region, compiled.run, inputs)
    kept = [item.clone() for item in first]
    for weight in inputs:
        weight.mul_(0.5)
    second = assert_right(region, compiled.run, inputs)
    storages = [item.untyped_storage().data_ptr() for item in (*inputs, *first, *second)]
    assert len(set(storages)) == len(storages)
    assert all(torch.equal(now, then) for now, then in zip(first, kept, strict=True))
    assert len(inputs) == 4 and all(torch.equal(now, then / 2) for now, then in zip(inputs, before, strict=True))


def test_dynamic_region_serves_other_sizes_and_adds_no_guard():
    region = trace_region(layer, layer_inputs(), dynamic=True)
    symbolic = next(node.meta["val"] for node in region.graph_module.graph.nodes if node.op == "placeholder")
    shape_env = symbolic.fake_mode.shape_env
    before = len(shape_env.guards)
    compiled = InductorBackend().compile(region)
    assert len(shape_env.guards) == before
    for shape in ((2, 5, 16, 24), (3, 7, 8, 4), (2, 2, 2, 2)):
        inputs = make_inputs(trace_region(layer, layer_inputs(*shape), dynamic=True))
        assert_right(region, compiled.run, inputs)
    assert all(not condition.size.expression.is_number for condition in compiled.preconditions)


def softshrink_backward(grad, x):
    zero = aten.scalar_tensor(0, dtype=torch.float32, device=torch.device("cpu"))
    near = aten.le(aten.abs(x), 0.5)
    return aten.add(aten.mul(aten.where(near, zero, grad), 0), aten.zeros_like(aten.where(near, grad, zero)))


def test_passes_fold_what_a_symbolic_size_makes():
    region = trace_region(softshrink_backward, [torch.randn(6, 1), torch.randn(6, 1)], dynamic=True)
    assert_right(region, InductorBackend().compile(region).run, make_inputs(region))


def first_of_two(x):
    half = (x.shape[0] + 1) // 2
    return aten.mul(aten.split(x, half)[0], 3)


def test_a_region_that_takes_an_expression_is_compiled_again_from_inductors_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    graph_module, graph = trace_graph(first_of_two, [torch.randn(9)], dynamic=True)
    nodes = tuple(node.name for node in graph.placed_nodes)
    plan = Plan(graph.id, graph.phase, True, (PlannedRegion("r0", "inductor", nodes),))
    region = cut_regions(graph_module, graph, plan)[0].region
    assert any(isinstance(item.meta, SymbolicSize) and not item.meta.expression.is_Symbol for item in region.inputs)
    hits = counters["inductor"]["fxgraph_cache_hit"]
    first, second = InductorBackend().compile(region), InductorBackend().compile(region)
    assert counters["inductor"]["fxgraph_cache_hit"] == hits + 1
    assert first.preconditions == second.preconditions
    for compiled in (first, second):
        assert_right(region, compiled.run, make_inputs(region))


def test_backward_graph_under_a_foreign_fake_mode():
    """The shape of a backward compile: torch's own fake mode is active while the region is compiled."""

    def backward(tangent, x, weight):
        inner = aten.gelu_backward(tangent, x)
        return aten.mm(aten.t(inner), weight), aten.sum(inner, [0], True), aten.threshold_backward(inner, x, 0)

    region = trace_region(backward, [torch.randn(8, 6), torch.randn(8, 6), torch.randn(8, 10)], phase="backward")
    ambient = next(iter(region.graph_module.graph.find_nodes(op="placeholder"))).meta["val"].fake_mode
    with ambient:
        compiled = InductorBackend().compile(region)
    assert_right(region, compiled.run, make_inputs(region))


def test_empty_tensors():
    region = trace_region(lambda x, y: aten.relu(aten.add(x, y)), [torch.randn(0, 4), torch.randn(4)])
    assert_right(region, InductorBackend().compile(region).run, make_inputs(region))


def test_what_it_refuses_and_why():
    backend = InductorBackend()
    x = torch.randn(4, 4)
    refused = {
        "random": view_of(lambda x: aten.native_dropout(x, 0.5, True)[0], [x], "aten.native_dropout.default"),
        "layout": view_of(lambda x: aten.as_strided(x, [2], [3]), [x], "aten.as_strided.default"),
        "dtype": view_of(lambda x: aten.mul(x, x), [x.to(torch.complex64)], "aten.mul.Tensor"),
        "declined": view_of(lambda x: aten._cdist_forward(x, x, 2.0, None), [x], "aten._cdist_forward.default"),
    }
    if inductor_handling(operator_by_name("aten._cdist_forward.default")) != "none":
        del refused["declined"]
    for code, view in refused.items():
        verdict = backend.judge(view)
        assert isinstance(verdict, Unsupported), code
        assert verdict.code == code and verdict.detail


def test_how_inductor_handles_operators():
    handling = {name: inductor_handling(operator_by_name(name)) for name in (
        "aten.addmm.default", "aten.gelu.default", "aten.reshape.default", "aten._fft_r2c.default",
    )}  # fmt: skip
    assert handling["aten.addmm.default"] == "lowered"
    assert handling["aten.gelu.default"] == "decomposed"
    assert handling["aten.reshape.default"] in ("lowered", "decomposed")
    assert handling["aten._fft_r2c.default"] == "fallback"
    assert operator_by_name("aten.no_such_operator.default") is None


@pytest.fixture
def forget_compiler():
    from mixbackend.backends.inductor import backend

    backend._compiler.cache_clear()
    yield
    backend._compiler.cache_clear()


def test_no_compiler_is_a_reason(monkeypatch, forget_compiler):
    monkeypatch.setenv("CXX", "no-such-compiler")
    answer = InductorBackend().availability()
    assert not answer.available and "no-such-compiler" in answer.reason and "CXX" in answer.reason


def test_the_compiler_that_is_here_is_named_where_torch_takes_another(monkeypatch, forget_compiler, tmp_path):
    there = tmp_path / "clang++"
    there.symlink_to(find_compiler().command[0])
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = InductorBackend().availability()
    assert not answer.available and answer.reason.endswith(f"set CXX={there}")


def test_missing_python_headers_are_a_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/g++")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    answer = InductorBackend().availability()
    assert not answer.available and "Python.h" in answer.reason


def test_identity_and_rates(monkeypatch):
    backend = InductorBackend()
    check_backend(backend)
    before = backend.fingerprint()
    assert before == backend.fingerprint() and torch.__version__ in before
    monkeypatch.setattr("mixbackend.backends.inductor.backend.inductor_settings", lambda: "other settings")
    assert backend.fingerprint() != before
    device = DeviceModel("cpu", (("float32", 1e11),), 1e10, 1e6, 1e11, 3e-6, 1)
    rates = backend.prior(device)
    assert rates is not None and rates.rate("matmul", "float32").overhead_s == device.launch_s
    assert ("pointwise", "reduction") in backend.traits().fused
    assert ("matmul", "pointwise") not in backend.traits().fused
    assert backend.conditions().minimum_ops == 2
