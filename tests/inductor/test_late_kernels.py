"""Kernels of inductor that are waited for when they are first called: nothing waits before, and the cache has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import FxGraphCache, LambdaFuture
from torch._inductor.triton_bundler import TritonBundler
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.backends.inductor import InductorBackend
from mixbackend.backends.inductor import backend as inductor_backend
from mixbackend.compile.replay import make_inputs
from mixbackend.contracts import torch_compat as compat
from mixbackend.graph.trace import trace_region


def compiled(function: Any, *shapes: tuple[int, ...]) -> Any:
    """A function on tensors of these shapes, compiled by inductor."""
    mode = compat.fresh_fake_mode()
    with compat.tracing_apart(mode), mode:
        inputs = [torch.empty(shape) for shape in shapes]
        graph_module = make_fx(function, decomposition_table=compat.decomposition_table("inductor"))(*inputs)
    with compat.tracing_apart(mode):
        return compat.inductor_compile(graph_module, inputs, mode, [0], "inference")


def shifted(amount: float) -> Any:
    return lambda x: (torch.sin(x) * amount + x.sum(1, keepdim=True),)


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    from torch._inductor.codecache import PyCodeCache

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    PyCodeCache.cache_clear()
    return tmp_path


@pytest.fixture
def waited(monkeypatch):
    """What ``AsyncCompile.wait`` waited for, however late."""
    done: list[str] = []
    original = AsyncCompile._wait_futures

    def wait(self, scope):
        done.extend(key for key, value in scope.items() if isinstance(value, LambdaFuture))
        return original(self, scope)

    monkeypatch.setattr(AsyncCompile, "_wait_futures", wait)
    with config.patch(compile_threads=2):
        yield done


def entries(folder) -> int:
    return sum(path.is_file() for path in folder.glob("fxgraph/*/*/*"))


def test_two_graphs_are_written_before_either_is_waited_for(own_cache, waited):
    with compat.kernels_later() as first:
        one = compiled(shifted(2.0), (8, 16))
    with compat.kernels_later() as second:
        two = compiled(shifted(3.0), (8, 16))
    assert waited == [] and entries(own_cache) == 0
    assert first.pending and second.pending
    second.finish()
    first.finish()
    assert len(waited) == 2 and entries(own_cache) == 2
    assert not first.pending and not second.pending
    x = torch.randn(8, 16)
    for run, amount in ((one, 2.0), (two, 3.0)):
        torch.testing.assert_close(run([x])[0], shifted(amount)(x)[0])


def test_what_was_stored_late_is_found_again(own_cache, waited, monkeypatch):
    with compat.kernels_later() as late:
        compiled(shifted(4.0), (4, 8))
    late.finish()
    monkeypatch.setattr(FxGraphCache, "_save_graph", staticmethod(lambda *arguments: pytest.fail("compiled again")))
    with compat.kernels_later() as late:
        again = compiled(shifted(4.0), (4, 8))
    late.finish()
    x = torch.randn(4, 8)
    torch.testing.assert_close(again([x])[0], shifted(4.0)(x)[0])


def test_outside_nothing_is_late(own_cache, waited):
    with compat.kernels_later():
        pass
    run = compiled(shifted(5.0), (4, 8))
    assert len(waited) == 1 and entries(own_cache) == 1
    run([torch.randn(4, 8)])


def test_a_kernel_that_does_not_compile_is_told_at_each_call(own_cache, waited):
    with compat.kernels_later() as late:
        compiled(shifted(6.0), (4, 8))
    kept = late._waits[0]
    attempts: list[int] = []

    def fail() -> None:
        attempts.append(1)
        raise RuntimeError("no such instruction")

    late._waits[0] = fail
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such instruction"):
            late.finish()
    assert len(attempts) == 2 and entries(own_cache) == 0
    late._waits[0] = kept
    late.finish()
    assert entries(own_cache) == 1


def test_kernels_are_bundled_with_the_graph_that_they_belong_to(own_cache, waited, monkeypatch):
    """On a GPU the cache entry holds the kernels, so that the next process does not compile them."""
    stored: list[int] = []
    monkeypatch.setattr(TritonBundler, "is_enabled", staticmethod(lambda: True))

    def count(key, graph, *arguments):
        stored.append(len(graph._triton_bundle.static_autotuners))

    with compat.kernels_later() as late:
        compiled(shifted(7.0), (4, 8))
    (graph, _) = late._entries[0]
    late._entries[0] = (graph, lambda: count("", graph))
    load = late._waits[0]

    def with_kernel() -> None:
        load()
        TritonBundler._static_autotuners.append(type("Kernel", (), {"kernel_name": "kernel"})())

    late._waits[0] = with_kernel
    late.finish()
    assert stored == [1]
    assert TritonBundler._entries is None


def test_nothing_is_stored_while_somebody_else_compiles(own_cache, waited):
    with compat.kernels_later() as late:
        run = compiled(shifted(8.0), (4, 8))
    TritonBundler.begin_compile()
    try:
        late.finish()
        assert TritonBundler._entries == []
    finally:
        TritonBundler.end_compile()
    assert entries(own_cache) == 0 and len(waited) == 1
    x = torch.randn(4, 8)
    torch.testing.assert_close(run([x])[0], shifted(8.0)(x)[0])


def test_regions_on_a_gpu_are_waited_for_at_their_first_run(own_cache, waited, monkeypatch):
    monkeypatch.setattr(inductor_backend, "accelerator", lambda metas: "cuda")
    region = trace_region(lambda x: torch.ops.aten.relu(torch.ops.aten.mul(x, 9.0)), [torch.randn(4, 8)])
    made = InductorBackend().compile(region)
    assert waited == []
    inputs = make_inputs(region)
    for _ in range(2):
        (result,) = made.run(inputs)
        torch.testing.assert_close(result, torch.relu(inputs[0] * 9.0))
    assert len(waited) == 1


def test_regions_on_the_processor_are_waited_for_at_once(own_cache, waited):
    region = trace_region(lambda x: torch.ops.aten.relu(torch.ops.aten.mul(x, 10.0)), [torch.randn(4, 8)])
    made = InductorBackend().compile(region)
    assert len(waited) == 1
    made.run(make_inputs(region))
