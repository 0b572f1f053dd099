"""Small models on a GPU through the mixture: results, gradients, modes, streams, weights that change."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.gpu

MODES = [None, "reduce-overhead"]


class Images(nn.Module):
    """A residual network in small."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.first = nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32))
        self.depthwise = nn.Sequential(nn.Conv2d(32, 32, 5, 2, 2, groups=32, bias=False), nn.BatchNorm2d(32))
        self.head = nn.Linear(32, 10)

    def forward(self, images):
        stem = self.stem(images)
        whole = torch.relu(self.second(self.first(stem)) + stem)
        return self.head(functional.hardswish(self.depthwise(whole)).mean((2, 3)))


class Words(nn.Module):
    """A transformer layer in small."""

    def __init__(self, checkpointed=False):
        super().__init__()
        self.checkpointed = checkpointed
        self.embedding = nn.Embedding(100, 128)
        self.projection = nn.Linear(128, 384)
        self.out = nn.Linear(128, 128)
        self.norms = nn.ModuleList(nn.LayerNorm(128) for _ in range(2))
        self.wide, self.narrow = nn.Linear(128, 512), nn.Linear(512, 128)

    def attend(self, value):
        batch, length, _ = value.shape
        parts = self.projection(value).view(batch, length, 3, 2, 64).permute(2, 0, 3, 1, 4)
        made = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return self.out(made.transpose(1, 2).reshape(batch, length, 128))

    def forward(self, ids):
        value = self.embedding(ids)
        attended = checkpoint(self.attend, value, use_reentrant=False) if self.checkpointed else self.attend(value)
        value = self.norms[0](value + attended)
        return self.norms[1](value + self.narrow(functional.gelu(self.wide(value), approximate="tanh")))


def _case(name, device):
    torch.manual_seed(0)
    if name == "images":
        return Images().to(device), torch.randn(8, 3, 64, 64, device=device)
    return Words(name == "checkpointed").to(device), torch.randint(0, 100, (4, 48), device=device)


def _wide(value):
    return value.double() if value.is_floating_point() else value


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["images", "words"])
def test_inference_is_as_right_as_eager(gpu, mixture, close, name, dtype, mode):
    model, example = _case(name, gpu)
    exact = copy.deepcopy(model).double().eval()
    model = model.to(dtype).eval()
    compiled = torch.compile(model, backend=mixture(), mode=mode)
    # Eager and others may choose kernels that round to TF32 where the other does not.
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for _ in range(5):
            value = torch.randn_like(example, dtype=dtype) if name == "images" else example.roll(1, 1)
            close(compiled(value), model(value), exact(_wide(value)))
            example = value


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["images", "words", "checkpointed"])
def test_training_with_autocast_gives_eagers_gradients(gpu, mixture, close, name, mode):
    model, value = _case(name, gpu)
    exact, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    step = torch.compile(model, backend=mixture(), mode=mode)
    for _ in range(5):
        gradients = []
        for module, run in ((model, step), (eager, eager), (exact, exact)):
            module.zero_grad(set_to_none=True)
            given = _wide(value) if module is exact else value
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=module is not exact):
                loss = run(given).float().square().mean() if module is not exact else run(given).square().mean()
            loss.backward()
            gradients.append([parameter.grad.clone() for parameter in module.parameters()])
        for mine, theirs, reference in zip(*gradients, strict=True):
            close(mine, theirs, reference, factor=6.0)


@pytest.mark.parametrize("mode", MODES)
def test_a_grad_scaler_and_accumulated_gradients(gpu, mixture, mode):
    model, value = _case("images", gpu)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=mixture(), mode=mode)
    losses = []
    for module, run in ((eager, eager), (model, compiled)):
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cuda")
        torch.manual_seed(1)
        for _ in range(6):
            for part in value.chunk(2):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = run(part).float().square().mean() / 2
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss))
    assert losses[1] == pytest.approx(losses[0], rel=5e-2)


@pytest.mark.parametrize("mode", MODES)
def test_a_users_own_stream_is_honoured(gpu, mixture, mode):
    model, value = _case("words", gpu)
    model.eval()
    compiled = torch.compile(model, backend=mixture(), mode=mode)
    with torch.no_grad():
        expected = model(value).clone()
        for _ in range(4):
            compiled(value)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            late = value.clone()
            torch.cuda._sleep(50_000_000)
            late.copy_(value)
            result = compiled(late).clone()
        torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_weights_that_change_are_seen(gpu, mixture, mode):
    model, value = _case("images", gpu)
    model.eval()
    compiled = torch.compile(model, backend=mixture(), mode=mode)
    with torch.no_grad():
        for step in range(6):
            for _ in range(3):
                result = compiled(value)
            torch.testing.assert_close(result, model(value), rtol=1e-2, atol=1e-3)
            if step % 2:
                model.head.weight.mul_(1.5)
            else:
                model.load_state_dict({name: item * 1.1 for name, item in model.state_dict().items()})


@pytest.mark.parametrize("mode", MODES)
def test_several_sizes(gpu, mixture, mode):
    model, _ = _case("words", gpu)
    model.eval()
    compiled = torch.compile(model, backend=mixture(), mode=mode, dynamic=True)
    with torch.no_grad():
        for _ in range(4):
            for length in (16, 48, 24):
                value = torch.randint(0, 100, (4, length), device=gpu)
                torch.testing.assert_close(compiled(value), model(value), rtol=1e-2, atol=2e-3)


def test_what_the_processor_computes_splits_the_recording(gpu, mixture):
    def function(value, host):
        scaled = torch.relu(value * 2.0) @ value
        return torch.sigmoid(scaled + host.sum().to(value.device)) @ value

    backend = mixture()
    compiled = torch.compile(function, backend=backend, mode="reduce-overhead")
    value, host = torch.randn(64, 64, device=gpu), torch.randn(3)
    with torch.no_grad():
        for _ in range(5):
            host = host + 1.0
            torch.testing.assert_close(compiled(value, host), function(value, host), rtol=1e-3, atol=1e-3)
    told = [event.detail for event in backend.report().events if event.kind == "cuda_graphs"]
    assert "on cpu" in told[0]
    assert told[1].startswith("recorded")


def _recordings(backend):
    return [
        event.detail for event in backend.report().events if event.kind == "cuda_graphs" and "regions" in event.detail
    ]


def test_masks_that_the_model_writes_number_by_number_keep_nothing_out_of_the_recording(gpu, mixture):
    layer = nn.Linear(64, 64).to(gpu).eval()

    def function(value):
        mask = value.new_zeros(64, 64)
        for place, rows in enumerate((slice(0, 16), slice(16, 48), slice(48, None))):
            mask[rows, rows] = place
        bias = mask.unsqueeze(1) - mask.unsqueeze(2)
        return torch.softmax(layer(value) + bias.masked_fill(bias != 0, -100.0), -1)

    backend = mixture()
    compiled = torch.compile(function, backend=backend, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            value = torch.randn(64, 64, device=gpu)
            torch.testing.assert_close(compiled(value), function(value), rtol=1e-3, atol=1e-4)
    (told,) = _recordings(backend)
    assert told.endswith("in 1 CUDA graphs"), told


def test_views_of_inputs_that_training_saves_keep_nothing_out_of_the_recording(gpu, mixture):
    table, head = nn.Embedding(50, 32).to(gpu), nn.Linear(32, 50).to(gpu)

    def function(words):
        flat = words.view(-1)
        return nn.functional.cross_entropy(head(torch.relu(table(flat))), flat)

    backend = mixture()
    compiled = torch.compile(function, backend=backend, mode="reduce-overhead")
    for _ in range(4):
        words = torch.randint(0, 50, (4, 8), device=gpu)
        expected = torch.autograd.grad(function(words), [table.weight, head.weight])
        for mine, theirs in zip(
            torch.autograd.grad(compiled(words), [table.weight, head.weight]), expected, strict=True
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
    assert len(_recordings(backend)) == 2
    assert all(told.endswith("in 1 CUDA graphs") for told in _recordings(backend)), _recordings(backend)


def test_verifying_takes_a_few_times_what_results_take(gpu, mixture):
    layer = nn.Linear(256, 1 << 15).to(gpu, torch.float16).eval()
    value = torch.randn(1 << 12, 256, device=gpu, dtype=torch.float16)
    backend = mixture()
    compiled = torch.compile(lambda given: torch.relu(layer(given)), backend=backend)
    with torch.no_grad():
        # Calibrates, where nobody has yet.
        torch.compile(lambda given: torch.sigmoid(given) + 1, backend=backend)(value[:8])
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = compiled(value)
    # The result, eager's, and the reference in float64 with what it is made of.
    assert torch.cuda.max_memory_allocated() - before < 14 * result.nbytes
    assert torch.cuda.memory_reserved() - torch.cuda.memory_allocated() < 4 * result.nbytes


def test_recordings_are_told_and_launch_little(gpu, mixture):
    model, value = _case("words", gpu)
    backend = mixture()
    compiled = torch.compile(model.eval(), backend=backend, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(5):
            compiled(value)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            compiled(value)
            torch.cuda.synchronize()
    launches = sum(item.count for item in profile.key_averages() if "cudaGraphLaunch" in item.key)
    assert launches == 1
    assert any("CUDA graphs" in event.detail for event in backend.report().events)


def test_products_are_as_exact_as_torch_is_told_to(gpu, mixture, precision):
    layer = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to(gpu).eval()
    value = torch.randn(256, 512, device=gpu)
    errors = {}
    for name in ("highest", "high"):
        precision(name)
        torch._dynamo.reset()
        with torch.no_grad():
            result = torch.compile(layer, backend=mixture())(value)
        errors[name] = float((result.double() - copy.deepcopy(layer).double()(value.double())).abs().max())
    assert errors["highest"] < 1e-5
    assert 1e-5 < errors["high"] < 1e-2
