"""A transformer layer and a residual block as whole regions: inference, training, several sizes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

_WIDTH, _HEADS = 32, 4


def _parameters(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) / max(shape[-1], 1) ** 0.5 for shape in shapes]


_LAYER = _parameters(
    *[(_WIDTH, _WIDTH), (_WIDTH,)] * 4,
    *[(4 * _WIDTH, _WIDTH), (4 * _WIDTH,), (_WIDTH, 4 * _WIDTH), (_WIDTH,)],
    *[(_WIDTH,)] * 4,
)


def _layer(x, *parameters):
    """A BERT layer."""
    q, qb, k, kb, v, vb, o, ob, up, upb, down, downb, s1, b1, s2, b2 = parameters
    batch, length, _ = x.shape

    def heads(value):
        return value.view(batch, length, _HEADS, _WIDTH // _HEADS).transpose(1, 2)

    attended = functional.scaled_dot_product_attention(
        heads(functional.linear(x, q, qb)), heads(functional.linear(x, k, kb)), heads(functional.linear(x, v, vb))
    )
    merged = attended.transpose(1, 2).reshape(batch, length, _WIDTH)
    x = functional.layer_norm(x + functional.linear(merged, o, ob), [_WIDTH], s1, b1)
    inner = functional.linear(functional.gelu(functional.linear(x, up, upb)), down, downb)
    return functional.layer_norm(x + inner, [_WIDTH], s2, b2)


def _layer_gradients(x, *parameters):
    with torch.enable_grad():
        inputs = [item.detach().requires_grad_() for item in (x, *parameters)]
        loss = functional.cross_entropy(_layer(*inputs).flatten(0, 1), torch.arange(x.shape[0] * x.shape[1]) % _WIDTH)
        return loss.detach(), *torch.autograd.grad(loss, inputs)


def test_transformer_layer(workbench):
    workbench.check(_layer, torch.randn(2, 16, _WIDTH), *_LAYER)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_transformer_layer_in_half_precision(workbench, dtype):
    workbench.check(_layer, *[item.to(dtype) for item in (torch.randn(2, 16, _WIDTH), *_LAYER)])


def test_transformer_layer_serves_all_lengths(workbench):
    built = workbench.build(_layer, [torch.randn(3, 9, _WIDTH), *_LAYER], dynamic=True)
    for shape in ((2, 4), (3, 9), (5, 37)):
        workbench.check(_layer, torch.randn(*shape, _WIDTH), *_LAYER, built=built)


def test_gradients_of_a_transformer_layer(workbench):
    """Forward and backward in one region: every derivative that the layer needs is in the table."""
    built = workbench.check(_layer_gradients, torch.randn(2, 16, _WIDTH), *_LAYER)
    operators = {view.op for view in built.region.views}
    assert {
        "aten.native_layer_norm_backward.default",
        "aten.gelu_backward.default",
        "aten.nll_loss_backward.default",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    } <= operators


_BLOCK = _parameters((16, 8, 3, 3), (16,), (16,), (16,), (16, 16, 3, 3), (16,), (16,), (16,), (16, 8, 1, 1), (10, 16))


def _normalized(x, scale, shift, mean):
    """Batch normalisation as AOTAutograd writes it in inference."""
    operator = torch.ops.aten._native_batch_norm_legit_no_training
    return operator(x, scale, shift, mean, scale.abs() + 0.5, 0.1, 1e-5)[0]


def _block(x, *parameters):
    """A ResNet block with its stem's pooling and its head."""
    w1, s1, b1, m1, w2, s2, b2, m2, w3, head = parameters
    x = functional.max_pool2d(x, 3, 2, 1)
    y = functional.conv2d(x, w1, None, 2, 1)
    y = torch.relu(_normalized(y, s1, b1, m1))
    y = _normalized(functional.conv2d(y, w2, None, 1, 1), s2, b2, m2)
    y = torch.relu(y + functional.conv2d(x, w3, None, 2))
    return functional.linear(functional.adaptive_avg_pool2d(y, 1).flatten(1), head)


def test_residual_block(workbench):
    workbench.check(_block, torch.randn(2, 8, 24, 20), *_BLOCK)


def test_residual_block_takes_channels_last(workbench):
    image = torch.randn(2, 8, 24, 20)
    built = workbench.build(_block, [image, *_BLOCK])
    workbench.check(_block, image.to(memory_format=torch.channels_last), *_BLOCK, built=built)


def _masked_tokens(ids, table, positions):
    mask = ids != 0
    hidden = functional.embedding(ids, table) + positions[: ids.shape[1]]
    additive = torch.where(mask[:, None, None, :], 0.0, torch.finfo(torch.float32).min)
    scores = torch.softmax(hidden[:, None] @ hidden[:, None].transpose(-1, -2) + additive, -1)
    pooled = (scores[:, 0] @ hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    return functional.normalize(pooled, dim=1), pooled.argmax(1), mask.cumsum(1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_sentence_embedding(workbench, dynamic):
    """Tokens, masks, pooling and normalisation, with integers and booleans inside."""
    ids = torch.randint(0, 5, (3, 12))
    inputs = [ids, torch.randn(5, 8), torch.randn(64, 8)]
    built = workbench.build(_masked_tokens, inputs, dynamic=dynamic)
    workbench.check(_masked_tokens, *inputs, built=built)
    if dynamic:
        workbench.check(_masked_tokens, torch.randint(0, 5, (2, 31)), *inputs[1:], built=built)
