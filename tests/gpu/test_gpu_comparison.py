"""Plans measured at the first call on a GPU: results, what is put back and given back, what is remembered."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

from mixbackend.cost.costs import SessionCosts
from mixbackend.execute.state_restore import Changes, RepeatedCall
from mixbackend.select import comparison_gpu, gpu_memory
from mixbackend.select.comparison_gpu import GpuHarness

pytestmark = pytest.mark.gpu

REPLAYED = "reduce-overhead"
MEASURED = {"mode": "measure"}


@pytest.fixture(autouse=True)
def everybody_is_near(monkeypatch):
    """Whatever is estimated: these tests are about what comes of it."""
    names = {"inductor", "codegen", "cudnn", "cublaslt"}
    monkeypatch.setattr(SessionCosts, "comparable", lambda self, graph: {item.name for item in self.backends} & names)
    monkeypatch.setattr(comparison_gpu, "NEAR", 100.0)
    monkeypatch.setattr(comparison_gpu, "LEAST_S", 0.0)


def _layers(gpu, count=2, **options):
    torch.manual_seed(0)
    parts = []
    for _ in range(count):
        parts += [nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512)]
    return nn.Sequential(*parts).to(gpu, **options)


def _told(backend):
    return [event.detail for event in backend.report().events if event.kind == "tuning"]


def _chosen(backend):
    return [graph["tuning"] and graph["tuning"]["chosen"] for graph in backend.report().to_dict()["graphs"]]


def test_inference_runs_the_quickest_and_others_remember_it(gpu, mixture, close):
    model = _layers(gpu, dtype=torch.float16).eval()
    exact = copy.deepcopy(model).double()
    first = mixture(search=MEASURED)
    with torch.no_grad():
        compiled = torch.compile(model, backend=first, mode=REPLAYED)
        for _ in range(6):
            value = torch.randn(256, 512, device=gpu, dtype=torch.float16)
            close(compiled(value), model(value), exact(value.double()))
        (detail,) = _told(first)
        assert detail.startswith("took ") and detail.count(" ms") >= 2 and "failed" not in detail, detail
        recorded = [event.detail for event in first.report().events if event.kind == "cuda_graphs"]
        assert len(recorded) == 2, recorded

        chosen = _chosen(first)
        torch._dynamo.reset()
        second = mixture(search=MEASURED)
        again = torch.compile(model, backend=second, mode=REPLAYED)
        for _ in range(4):
            close(again(value), model(value), exact(value.double()))
        assert _told(second) == []
        assert _chosen(second) == chosen

        # Kernels that are launched one by one are another matter.
        torch._dynamo.reset()
        plain = mixture()
        torch.compile(model, backend=plain)(value)
        assert (_told(plain), _chosen(plain)) == ([], [None])


def test_training_compares_both_halves_and_writes_statistics_once(gpu, mixture, close):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Linear(512, 64)).to(gpu)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    backend = mixture(search=MEASURED)
    step = torch.compile(model, backend=backend, mode=REPLAYED)
    for number in range(5):
        value = torch.randn(128, 256, device=gpu)
        gradients = []
        for module, run in ((model, step), (eager, eager), (exact, exact)):
            module.zero_grad(set_to_none=True)
            given = value.double() if module is exact else value
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=module is not exact):
                loss = run(given)
            loss.to(torch.float64 if module is exact else torch.float32).square().mean().backward()
            gradients.append([parameter.grad.clone() for parameter in module.parameters()])
        for mine, theirs, reference in zip(*gradients, strict=True):
            close(mine, theirs, reference, factor=8.0)
        assert int(model[1].num_batches_tracked) == number + 1
        torch.testing.assert_close(model[1].running_mean, eager[1].running_mean, rtol=2e-2, atol=2e-3)
    took = [detail for detail in _told(backend) if detail.startswith("took ")]
    assert len(took) == 2, _told(backend)
    assert not any("failed" in detail for detail in took), took


def test_what_is_recorded_already_stays_right(gpu, mixture):
    """Graph breaks: what one graph returned is alive while the next one is compared."""
    first, second = _layers(gpu).eval(), _layers(gpu).eval()

    def function(value):
        between = first(value)
        torch._dynamo.graph_break()
        return second(between) + between

    backend = mixture(search=MEASURED)
    compiled = torch.compile(function, backend=backend, mode=REPLAYED)
    with torch.no_grad():
        for _ in range(6):
            value = torch.randn(64, 512, device=gpu)
            torch.testing.assert_close(compiled(value), function(value), rtol=2e-2, atol=2e-3)
    assert sum(detail.startswith("took ") for detail in _told(backend)) == 2


def test_losers_give_their_memory_back(gpu, mixture):
    model = _layers(gpu, count=4, dtype=torch.float16).eval()
    value = torch.randn(4096, 512, device=gpu, dtype=torch.float16)
    held = []
    for seconds in (0.0, 60.0):
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        backend = mixture(search={**MEASURED, "first_call_gpu_s": seconds})
        compiled = torch.compile(model, backend=backend, mode=REPLAYED)
        with torch.no_grad():
            for _ in range(5):
                result = compiled(value)
        torch.cuda.synchronize()
        assert bool(_told(backend)) is (seconds > 0.0)
        gc.collect()
        torch.cuda.empty_cache()
        # Not since the beginning of a round: recordings before it, of other tests as well, give theirs back during it.
        held.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
        del result, compiled, backend
    weights = sum(item.nbytes for item in model.parameters())
    # Plans differ in what they keep of the weights and of what is in between: by less than each once more.
    assert held[1][0] <= held[0][0] + weights + 2 * value.nbytes, held
    assert held[1][1] <= held[0][1] + 64 * 2**20, held


def test_without_memory_nothing_is_compared(gpu, mixture, monkeypatch):
    monkeypatch.setattr(gpu_memory, "free_bytes", lambda device: 2**20)
    model = _layers(gpu).eval()
    value = torch.randn(256, 512, device=gpu)
    backend = mixture(search=MEASURED)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, mode=REPLAYED)
        for _ in range(4):
            torch.testing.assert_close(compiled(value), model(value), rtol=2e-2, atol=2e-3)
    (detail,) = _told(backend)
    assert detail.startswith("not compared with others: it may take ")


def test_the_first_call_may_come_on_a_stream_of_the_users(gpu, mixture):
    model = _layers(gpu).eval()
    value = torch.randn(256, 512, device=gpu)
    compiled = torch.compile(model, backend=mixture(search=MEASURED), mode=REPLAYED)
    stream = torch.cuda.Stream()
    with torch.no_grad():
        expected = model(value)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(5):
                late = torch.zeros_like(value)
                torch.cuda._sleep(20_000_000)
                late.copy_(value)
                torch.testing.assert_close(compiled(late), expected, rtol=2e-2, atol=2e-3)


def test_random_numbers_go_on_where_they_were(gpu):
    harness = GpuHarness(60.0, 0, True, ())
    before = torch.cuda.get_rng_state(gpu)
    with harness.prepared([], []):
        torch.rand(100, device=gpu)
    assert torch.equal(before, torch.cuda.get_rng_state(gpu))


def test_a_block_takes_what_its_calls_take(gpu):
    harness = GpuHarness(60.0, 0, True, ())
    cycles = 2_000_000
    call = RepeatedCall([], Changes())
    for _ in range(5):  # clocks rise
        harness.turn(lambda values: torch.cuda._sleep(cycles), call)
    # Whoever else uses the GPU makes most turns longer, and for a while all of them.
    turns = [[harness.turn(lambda values, n=n: torch.cuda._sleep(n * cycles), call) for n in (1, 2)] for _ in range(60)]
    once, twice = (min(times) for times in zip(*turns, strict=True))
    assert 1.5 * once < twice < 2.7 * once
    assert 2e-4 < once < 2e-2
