"""Samples of the few ops that wrong backends claim."""

from __future__ import annotations

import torch

from mixbackend.certify.samples import Sample

aten = torch.ops.aten
_X = torch.linspace(-2, 2, 24).reshape(6, 4)
_Y = torch.linspace(3, -1, 24).reshape(6, 4)

SAMPLES = (
    Sample("relu", torch.relu, (_X,)),
    Sample("relu of float64", torch.exp, (_X.double() / 3,)),
    Sample("relu of nothing", torch.relu, (_X[:0],)),
    Sample("add", torch.add, (_X, _Y)),
    Sample("add a row", torch.add, (_X, _Y[0])),
    Sample("transposed", torch.relu, (_X.t(),)),
    Sample("clone", lambda x: x.clone(), (_X,)),
    Sample("random", torch.bernoulli, (torch.full((64,), 0.5),)),
    Sample("write", lambda buffer, x: aten.copy_(buffer, x), (_X, _Y)),
    Sample("scaled by a constant", torch.mul, (_X, _Y), weights=(1,)),
)
