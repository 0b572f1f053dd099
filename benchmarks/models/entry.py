"""One model of the suite: how to build it, feed it and turn its output into a loss.

Place: the unit that the suite's runner, the demo and the probes of the partitioner's benchmark load.
Input: a factory that builds module and inputs from torch's current random state.
Output: ``Entry.load`` -> (module, args, kwargs), equal at every call with the same torch build.
Invariants: nothing is downloaded; dropout layers stay in the training graph but drop nothing, as upstream's benchmark
does, so that eager and compiled runs can be compared value by value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from mixbackend.benchmarks.models.trees import map_tensors, tensors_in

Family = Literal["hf", "timm", "torchbench", "demo"]
Official = Literal["2.0", "skip", "new"]
"""Where upstream stands: in the set announced with PyTorch 2.0, listed there but skipped, or added since."""

Loaded = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

KEPT_DROPOUT = 1e-30
"""A probability that keeps a dropout op in the graph and lets every value through."""

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the suite.

    Attributes:
        name: upstream's name for it; unique in the suite.
        family: which of upstream's three suites it belongs to; decides tolerances.
        make: builds (module, args, kwargs).
        origin: package that the module's class comes from, or ``own`` where it is re-stated in plain torch here.
        official: see ``Official``.
        train: whether a training step makes sense (it has parameters and a differentiable output).
    """

    name: str
    family: Family
    make: Callable[[], Loaded]
    origin: str
    official: Official = "2.0"
    train: bool = True

    def load(self, train: bool = False, device: str = "cpu") -> Loaded:
        """Module in training or evaluation mode, and its inputs, on ``device``."""
        torch.manual_seed(0)
        module, args, kwargs = self.make()
        module = module.to(device)
        for part in module.modules():
            if isinstance(part, _DROPOUTS) and part.p > 0:
                part.p = KEPT_DROPOUT
        args, kwargs = map_tensors(lambda tensor: tensor.to(device), (args, kwargs))
        return module.train(train), args, kwargs

    def loss(self, output: Any) -> torch.Tensor:
        """One scalar from any output: the model's own loss if it computed one, else the mean of all floats."""
        own = getattr(output, "loss", None)
        if own is not None:
            return own
        means = [tensor.mean() for tensor in tensors_in(output) if tensor.is_floating_point()]
        if not means:
            raise ValueError(f"{self.name}: no floating-point tensor in the output to make a loss of")
        return sum(means[1:], start=means[0]) / len(means)
