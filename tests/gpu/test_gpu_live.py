"""Plans compared by the user's own calls on a GPU, and between them where kernels are replayed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mixbackend.cost.costs import SessionCosts
from mixbackend.select.live import allowance, call_meter, gpu_challengers, selection, turns
from mixbackend.select.live.gpu_stage import GpuStage
from mixbackend.select.live.gpu_watch import GpuWatch

pytestmark = pytest.mark.gpu

MODES = [None, "reduce-overhead"]
BACKENDS = ["codegen", "cudnn", "cublaslt", "eager"]
"""Those that build quickly."""


@pytest.fixture(autouse=True)
def tried_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody is near, and calls have paid for trying from the first one on; all is built here, between two calls."""
    monkeypatch.setattr(gpu_challengers, "NEAR", 100.0)
    monkeypatch.setattr(gpu_challengers, "LEAST_S", 0.0)
    for name, value in (("LEAST_S", 0.0), ("LEAST_CALLS", 1), ("SHARE", 1e6)):
        monkeypatch.setattr(allowance, name, value)
    monkeypatch.setattr(call_meter, "LOOK_EVERY_S", 0.0)
    for module in (turns, selection):
        monkeypatch.setattr(module, "TURN_S", 1e-3)
    monkeypatch.setenv("MIXBACKEND_BACKGROUND", "off")
    monkeypatch.setattr(SessionCosts, "comparable", lambda self, graph: {item.name for item in self.backends})


def _settled(backend: Any, call: Callable[[], None], most: int = 6000) -> list[dict[str, Any]]:
    for _ in range(most):
        call()
        if backend.settled():
            graphs = backend.report().to_dict()["graphs"]
            return [item for graph in graphs for item in graph["selection"]["happened"]]
    raise AssertionError([graph["selection"] for graph in backend.report().to_dict()["graphs"]])


@pytest.mark.parametrize("mode", MODES)
def test_inference_settles_and_every_call_is_right(gpu, mixture, close, mode):
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 512)).to(gpu).half().eval()
    exact = copy.deepcopy(model).double()
    backend = mixture(backends=BACKENDS, on_failure="repair")
    compiled = torch.compile(model, backend=backend, mode=mode, dynamic=False)
    value = torch.randn(256, 512, device=gpu, dtype=torch.float16)
    with torch.no_grad():
        eager, reference = model(value), exact(value.double())
        happened = _settled(backend, lambda: close(compiled(value), eager, reference))
        other = torch.randn_like(value)
        close(compiled(other), model(other), exact(other.double()))
    assert any(item["rounds"] for item in happened), happened
    assert all(item["change"] != "out" for item in happened), happened


def test_challengers_are_built_behind_whatever_torch_is_told(gpu, mixture, monkeypatch):
    """The other process takes the switches over: code is made for what they say."""
    monkeypatch.delenv("MIXBACKEND_BACKGROUND")
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(64), nn.GELU()).to(gpu).eval()
    value = torch.randn(4, 8, 16, 16, device=gpu)
    with (
        torch.no_grad(),
        torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=True, allow_tf32=False),
    ):
        model(value)
        backend = mixture(backends=BACKENDS, background="auto")
        compiled = torch.compile(model, backend=backend, dynamic=False)
        compiled(value)
        assert backend.warm_up(lambda: compiled(value), longest_s=120.0)
    (graph,) = backend.report().to_dict()["graphs"]
    happened = graph["selection"]["happened"]
    assert happened and all(item["change"] != "out" for item in happened), happened


@pytest.mark.parametrize("mode", MODES)
def test_a_cursor_moves_once_a_call(gpu, mixture, mode):
    """A cache that the graph writes, a counter that it advances and random numbers stand where the user's calls are."""

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(256, 256)
            self.register_buffer("cache", torch.zeros(64, 256))
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            row = self.inner(value).mean(0, keepdim=True)
            self.cache.index_copy_(0, self.steps.remainder(64).reshape(1), row)
            self.steps.add_(1)
            return torch.softmax(self.inner(value) + self.cache.sum(0), -1)

    model = Cached().to(gpu).eval()
    eager = copy.deepcopy(model)
    backend = mixture(backends=BACKENDS, on_failure="repair")
    compiled = torch.compile(model, backend=backend, mode=mode, dynamic=False)
    values = [torch.randn(128, 256, device=gpu) for _ in range(7)]
    calls = 0

    def call() -> None:
        nonlocal calls
        value = values[calls % len(values)]
        calls += 1
        torch.testing.assert_close(compiled(value), eager(value), rtol=1e-3, atol=1e-4)
        assert int(model.steps) == calls

    with torch.no_grad():
        _settled(backend, call)
    torch.testing.assert_close(model.cache, eager.cache, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_training_steps_are_eagers(gpu, mixture, mode):
    model = nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Linear(512, 64)).to(gpu)
    eager = copy.deepcopy(model)
    backend = mixture(backends=BACKENDS, on_failure="repair")
    step = torch.compile(model, backend=backend, mode=mode, dynamic=False)
    value = torch.randn(128, 256, device=gpu)
    count = 0

    def call() -> None:
        nonlocal count
        count += 1
        gradients = []
        for module, run in ((model, step), (eager, eager)):
            module.zero_grad(set_to_none=True)
            run(value).square().mean().backward()
            gradients.append([parameter.grad.clone() for parameter in module.parameters()])
        for mine, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=1e-4)
        assert int(model[1].num_batches_tracked) == count

    _settled(backend, call)


def test_laps_know_what_the_gpu_did_and_nothing_waits(gpu):
    lap = GpuWatch(0).begin()
    assert lap is not None
    torch.cuda._sleep(200_000_000)
    lap.stop()
    assert lap.seconds() is None, "the GPU is not done"
    torch.cuda.synchronize()
    found = lap.seconds()
    assert found is not None and found.device_s > 10 * found.host_s and found.idle
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert GpuWatch(0).begin() is None


def test_a_stage_that_has_ended_begins_anew(gpu):
    from mixbackend.execute.state_restore import Changes
    from mixbackend.select.live.preparation import Contender

    stage, made = GpuStage(0), []

    def apart() -> Any:
        made.append(1)
        return lambda values: [values[0] + 1]

    contender = Contender(lambda values: [], Changes(), apart=apart)
    value = torch.zeros(8, device=gpu)
    for _ in range(2):
        while stage.turn(1, contender, [value]) is None:
            pass
        stage.end()
    assert len(made) == 2
