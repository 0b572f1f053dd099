"""Attention that models write out, by the kernels of a GPU: masks of every layout, rows without keys, odd lengths."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = pytest.mark.gpu
HEADS, SIZE = 12, 64


class Layer(torch.nn.Module):
    """Projections and attention as in BERT; torch is told to write the attention out."""

    def __init__(self) -> None:
        super().__init__()
        width = HEADS * SIZE
        self.query, self.key, self.value, self.out = (torch.nn.Linear(width, width) for _ in range(4))

    def forward(self, states, others, mask):
        def split(value):
            return value.view(*value.shape[:2], HEADS, SIZE).transpose(1, 2)

        heads = split(self.query(states)), split(self.key(others)), split(self.value(others))
        with sdpa_kernel(SDPBackend.MATH):
            made = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.out(made.transpose(1, 2).reshape(states.shape))


def _mask(kind, batch, queries, keys, dtype, device):
    if kind == "none":
        return None
    if kind == "expanded":
        return torch.ones(batch, 1, 1, 1, dtype=torch.bool, device=device).expand(batch, 1, queries, keys)
    if kind == "padding":
        return (torch.arange(keys, device=device) < keys // 2).expand(batch, 1, queries, keys)
    if kind == "rows without keys":
        allowed = torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=device)
        allowed[:, :, 1:3] = False
        return allowed
    if kind == "causal":
        upper = torch.full((queries, keys), -math.inf, dtype=dtype, device=device).triu(1)
        return upper.expand(batch, 1, queries, keys)
    return torch.full((batch, HEADS, queries, keys), torch.finfo(dtype).min, dtype=dtype, device=device).triu(1)


KINDS = ["none", "expanded", "padding", "rows without keys", "causal", "least numbers"]


def _checked(mixture, close, gpu, kind, dtype, batch=4, queries=128, keys=128):
    torch.manual_seed(0)
    module = Layer().to(gpu, dtype).eval()
    states = torch.randn(batch, queries, HEADS * SIZE, device=gpu, dtype=dtype)
    others = states if queries == keys else torch.randn(batch, keys, HEADS * SIZE, device=gpu, dtype=dtype)
    mask = _mask(kind, batch, queries, keys, dtype, gpu)
    ours = mixture(backends=["cudnn", "eager"])
    compiled = torch.compile(module, backend=ours)
    with torch.no_grad():
        result, eager = compiled(states, others, mask), module(states, others, mask)
        again = compiled(states, others, mask)
        wide = mask.double() if mask is not None and mask.is_floating_point() else mask
        exact = module.double()(states.double(), others.double(), wide)
    close(result, eager, exact)
    torch.testing.assert_close(again, result)
    report = ours.report().to_dict()
    assert report["events"] == []
    matches = [str(region) for graph in report["graphs"] for region in graph["regions"] if region["backend"] == "cudnn"]
    assert matches, "no attention for cudnn"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_masks(gpu, mixture, close, kind, dtype):
    _checked(mixture, close, gpu, kind, dtype)


@pytest.mark.parametrize(
    ("batch", "queries", "keys"), [(1, 128, 128), (2, 77, 77), (2, 1, 33), (3, 40, 129), (2, 512, 512)]
)
@pytest.mark.parametrize("kind", ["none", "expanded", "padding"])
def test_lengths(gpu, mixture, close, kind, batch, queries, keys):
    _checked(mixture, close, gpu, kind, torch.float16, batch, queries, keys)


def test_sizes_that_change(gpu, mixture, close):
    module = Layer().to(gpu, torch.float16).eval()
    compiled = torch.compile(module, backend=mixture(backends=["cudnn", "eager"]), dynamic=True)
    for length in (64, 72, 131):
        states = torch.randn(2, length, HEADS * SIZE, device=gpu, dtype=torch.float16)
        mask = _mask("padding", 2, length, length, torch.float16, gpu)
        with torch.no_grad():
            result, eager = compiled(states, states, mask), module(states, states, mask)
        torch.testing.assert_close(result, eager, rtol=1e-2, atol=1e-2)


def test_gradients_are_eagers(gpu, mixture):
    module = Layer().to(gpu, torch.float16)
    states = torch.randn(2, 64, HEADS * SIZE, device=gpu, dtype=torch.float16)
    mask = _mask("padding", 2, 64, 64, torch.float16, gpu)
    gradients = []
    for run in (module, torch.compile(module, backend=mixture(backends=["cudnn", "eager"]))):
        module.zero_grad()
        run(states, states, mask).float().square().mean().backward()
        gradients.append(module.query.weight.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=2e-2, atol=1e-4)
