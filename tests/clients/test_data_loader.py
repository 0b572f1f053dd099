"""DataLoader: transforms and models compiled in workers, forked and spawned."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import mixbackend

from .held_against_eager import data, hold_results


def _brighten(image):
    return (image * 1.5 + 0.1).clamp(0.0, 1.0).sub(0.5).mul(2.0)


def _model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)).eval().to(dtype)


@functools.cache
def _compiled_here():
    """What a worker compiles at its first image."""
    torch.set_num_threads(1)
    return torch.compile(_brighten, backend=mixbackend.auto())


class _Images(Dataset):
    """Images that pass a transform, and a compiled model if there is one."""

    def __init__(self, model=None):
        self.model = model

    def __len__(self):
        return 8

    def __getitem__(self, place):
        image = _compiled_here()(data(torch.float32, 1, 8, 8, seed=place))
        if self.model is None:
            return image
        with torch.no_grad():
            return self.model(image[None])[0]


def _expected(dtype, model=None):
    images = torch.stack([_brighten(data(dtype, 1, 8, 8, seed=place)) for place in range(8)])
    with torch.no_grad():
        return images if model is None else model(images)


def _loaded(dataset, context):
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context, timeout=200)
    return torch.cat(list(loader))


@pytest.mark.nightly
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_transforms_compiled_in_workers(context):
    # Compiled here already, which forked workers inherit.
    _compiled_here()(data(torch.float32, 1, 8, 8))
    hold_results([_loaded(_Images(), context)], [_expected(torch.float32)], [_expected(torch.float64)])


@pytest.mark.nightly
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_compiled_model_goes_to_workers(context):
    model = _model()
    compiled = torch.compile(model, backend=mixbackend.auto())
    with torch.no_grad():
        compiled(data(torch.float32, 1, 1, 8, 8))
    results = _loaded(_Images(compiled), context)
    expected = _expected(torch.float32, model), _expected(torch.float64, _model(torch.float64))
    hold_results([results], *([item] for item in expected))
