"""diffusers: a UNet with attention, alone, in a loop with a scheduler, and trained."""

from __future__ import annotations

import pytest
import torch

from .held_against_eager import data, hold, seeded

diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")


def _unet():
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=2,
        out_channels=2,
        layers_per_block=1,
        block_out_channels=(8,),
        down_block_types=("CrossAttnDownBlock2D",),
        up_block_types=("CrossAttnUpBlock2D",),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=4,
    )


def _denoised(wrap, dtype):
    model = seeded(_unet, dtype).eval()
    run = wrap(model)
    scheduler = diffusers.DDIMScheduler(num_train_timesteps=50)
    scheduler.set_timesteps(3)
    image, text = data(dtype, 1, 2, 8, 8), data(dtype, 1, 5, 16, seed=2)
    with torch.no_grad():
        for time in scheduler.timesteps:
            noise = run(image, time, encoder_hidden_states=text).sample
            image = scheduler.step(noise, time, image).prev_sample
    return [image]


def _gradients(wrap, dtype):
    model = seeded(_unet, dtype).train()
    result = wrap(model)(data(dtype, 2, 2, 8, 8), torch.tensor([3, 7]), data(dtype, 2, 5, 16, seed=2)).sample
    result.square().mean().backward()
    return [result, *(item.grad for item in model.parameters() if item.grad is not None)]


def test_denoises_as_eager_does(mixture):
    hold(_denoised, mixture)


def test_trains_as_eager_does(estimated):
    hold(_gradients, estimated)
