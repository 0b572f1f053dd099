"""The kernels of the GPU's libraries against torch's own steps, NaN and infinities included."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.cudnn import attention, kernels

pytestmark = pytest.mark.gpu
aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", [torch.channels_last, torch.contiguous_format])
def test_fused_convolutions(gpu, close, dtype, form):
    image, weight = torch.randn(4, 32, 14, 14, device=gpu), torch.randn(64, 32, 3, 3, device=gpu) / 16
    bias, other = torch.randn(64, device=gpu), torch.randn(4, 64, 7, 7, device=gpu)
    settings = ([2, 2], [1, 1], [1, 1])
    narrow = [image.to(dtype, memory_format=form), weight.to(dtype, memory_format=form), bias.to(dtype)]
    wide = [item.double() for item in narrow]
    added, wide_added = other.to(dtype, memory_format=form), other.to(dtype).double()
    close(
        kernels.fused_relu(*narrow, *settings),
        kernels.plain_relu(*narrow, *settings),
        kernels.plain_relu(*wide, *settings),
    )
    close(
        kernels.fused_add_relu(*narrow, added, *settings),
        kernels.plain_add_relu(*narrow, added, *settings),
        kernels.plain_add_relu(*wide, wide_added, *settings),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_fused_convolutions_keep_nan(gpu, dtype):
    image = torch.ones(2, 16, 6, 6, device=gpu, dtype=dtype).contiguous(memory_format=torch.channels_last)
    image[0, 3, 2, 2] = float("nan")
    image[1, 3, 2, 2] = float("inf")
    weight = torch.ones(16, 16, 1, 1, device=gpu, dtype=dtype).contiguous(memory_format=torch.channels_last)
    settings = (None, [1, 1], [0, 0], [1, 1])
    fused, plain = kernels.fused_relu(image, weight, *settings), kernels.plain_relu(image, weight, *settings)
    torch.testing.assert_close(fused, plain, equal_nan=True)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_epilogues_of_products_keep_nan(gpu, dtype, gelu):
    left, right = torch.randn(64, 32, device=gpu, dtype=dtype), torch.randn(32, 48, device=gpu, dtype=dtype)
    bias = torch.randn(48, device=gpu, dtype=dtype)
    left[3, 3] = float("nan")
    fused = aten._addmm_activation(bias, left, right, use_gelu=gelu)
    made = aten.addmm(bias, left, right)
    plain = torch.nn.functional.gelu(made, approximate="tanh") if gelu else made.relu()
    torch.testing.assert_close(fused, plain, equal_nan=True, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", [attention.flash, attention.efficient, attention.cudnn])
def test_kernels_of_attention_agree(gpu, close, kernel, causal):
    heads = [torch.randn(2, 4, 128, 64, device=gpu, dtype=torch.float16) for _ in range(3)]
    result = kernel(*heads, None, causal, None)[0]
    wide = torch.nn.functional.scaled_dot_product_attention(*(item.double() for item in heads), is_causal=causal)
    eager = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=causal)
    close(result, eager, wide, factor=6.0)
