"""Real engines on a GPU: results, CUDA graphs, streams, changed weights, two lengths, a second start."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from mixbackend.backends.tensorrt import TensorRtBackend
from mixbackend.configuration import load_config

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def real_engines() -> None:
    """Only where TensorRT can be used; otherwise skipped with its own reason."""
    reason = TensorRtBackend().availability().reason
    if reason:
        pytest.skip(reason)
    torch._dynamo.reset()
    torch.manual_seed(0)


class Block(torch.nn.Module):
    """A layer of a transformer, large enough to be worth an engine."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.nn.Linear(512, 1536)
        self.wide, self.narrow = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)
        self.norm = torch.nn.LayerNorm(512)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        rows, length, _ = value.shape
        parts = self.projection(value).view(rows, length, 3, 8, 64).permute(2, 0, 3, 1, 4)
        value = value + functional.scaled_dot_product_attention(*parts.unbind(0)).transpose(1, 2).flatten(2)
        return value + self.narrow(functional.gelu(self.wide(self.norm(value))))


def _images() -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for channels in (3, 64, 64):
        layers += [torch.nn.Conv2d(channels, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def _mixture(folder: Path) -> Any:
    from mixbackend.compile.mixture import Mixture

    settings = {
        "backends": ["tensorrt", "eager"],
        "rules": [{"match": {}, "prefer": "tensorrt", "factor": 0.001}],
        "cache": {"dir": str(folder)},
    }
    return Mixture(load_config(settings))


def _owners(mixture: Any) -> set[str]:
    return {region.backend for graph in mixture.report().graphs for region in graph.plan.regions}


def _close(actual: torch.Tensor, module: torch.nn.Module, value: torch.Tensor) -> None:
    """No farther from float64 than a few of eager's own distances."""
    with torch.no_grad():
        eager = module(value)
        exact = copy.deepcopy(module).double()(value.double())
    far, own = ((item.double() - exact).abs().max() for item in (actual, eager))
    assert far <= 4 * own + 64 * torch.finfo(value.dtype).eps * exact.abs().max()


def _case(name: str, dtype: torch.dtype) -> tuple[torch.nn.Module, torch.Tensor]:
    if name == "images":
        return _images().eval().cuda().to(dtype), torch.randn(32, 3, 224, 224, device="cuda", dtype=dtype)
    return Block().eval().cuda().to(dtype), torch.randn(32, 512, 512, device="cuda", dtype=dtype)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["images", "block"])
def test_engines_give_eagers_results_and_see_changed_weights(tmp_path, name, dtype, mode) -> None:
    module, value = _case(name, dtype)
    mixture = _mixture(tmp_path)
    run = torch.compile(module, backend=mixture, mode=mode)
    with torch.no_grad():
        for _ in range(6):
            _close(run(value).clone(), module, value)
        assert "tensorrt" in _owners(mixture), mixture.report().to_text()
        next(module.parameters()).mul_(1.5)
        _close(run(value).clone(), module, value)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_second_start_takes_up_the_engines(tmp_path, mode) -> None:
    """It verifies nothing any more, so that its first call is the engine's first one; others record beside it."""
    module, value = _case("block", torch.float16)
    for cached in (False, True):
        torch._dynamo.reset()
        mixture = _mixture(tmp_path)
        run, beside = (torch.compile(module, backend=backend, mode=mode) for backend in (mixture, "inductor"))
        with torch.no_grad():
            for call in (run, beside) * 5:
                _close(call(value).clone(), module, value)
        report = mixture.report()
        regions = [region for graph in report.to_dict()["graphs"] for region in graph["regions"]]
        assert {region["cached"] for region in regions if region["backend"] == "tensorrt"} == {cached}
        told = [event.detail for event in report.events if event.kind == "cuda_graphs"]
        assert not any("recording failed" in detail for detail in told), told
        assert any(detail.startswith("recorded") for detail in told) == (mode is not None), told


def test_calls_on_streams_of_the_user_are_in_order(tmp_path) -> None:
    module, value = _case("block", torch.float16)
    run = torch.compile(module, backend=_mixture(tmp_path))
    with torch.no_grad():
        run(value)
        results = []
        for _ in range(8):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                results.append(run(value))
        torch.cuda.synchronize()
        for result in results:
            _close(result, module, value)


def test_two_lengths_go_through_one_engine(tmp_path) -> None:
    module, _ = _case("block", torch.float16)
    mixture = _mixture(tmp_path)
    run = torch.compile(module, backend=mixture, dynamic=True)
    with torch.no_grad():
        for length in (512, 384, 640):
            value = torch.randn(32, length, 512, device="cuda", dtype=torch.float16)
            _close(run(value), module, value)
    assert "tensorrt" in _owners(mixture), mixture.report().to_text()
