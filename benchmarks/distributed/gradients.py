"""Gradients of a spread module: whole, held against one process's, and compared bit by bit where ranks have copies.

Place: below ``rank``. Input: a module after a backward. Output: ``Gradient`` by the name that the parameter has in a
module that is not wrapped, errors, and a digest.
Method: an error is relative, root of mean squares over all values of a parameter; a parameter with a gradient of
nothing but rounding (a bias before a norm) is measured by a thousandth of what all gradients are.
Invariants: every rank asks for every parameter, in one order: what is split is gathered by collectives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_WRAPPERS = ("_orig_mod.", "checkpointed.")
_FLOOR = 1e-3
"""Of the root of mean squares of all gradients: what a parameter's are measured by at least."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """Of one parameter.

    Attributes:
        whole: all of it.
        copied: whether each rank computed all of it, so that the bits must be equal everywhere.
    """

    whole: Tensor
    copied: bool


def gradients(module: nn.Module, copied: bool) -> dict[str, Gradient]:
    """Gradients by name.

    Args:
        module: spread, after a backward.
        copied: whether what is no distributed tensor is there on every rank.
    """
    return {_plain(name): _gradient(parameter, copied) for name, parameter in module.named_parameters()}


def _plain(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    # DDP's own name for what it wraps; ``WithLoss`` has a part of this name as well.
    return name.removeprefix("module.") if name.startswith("module.module.") else name


def _gradient(parameter: nn.Parameter, copied: bool) -> Gradient:
    grad = parameter.grad
    if grad is None:
        raise ValueError("a parameter has no gradient")
    if isinstance(grad, torch.distributed.tensor.DTensor):
        return Gradient(grad.full_tensor(), all(placement.is_replicate() for placement in grad.placements))
    return Gradient(grad, copied)


def digest(tensors: Iterable[Tensor]) -> str:
    """Of all bits."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def errors(found: Mapping[str, Gradient], reference: Mapping[str, Tensor]) -> dict[str, float]:
    """Relative error of every parameter, and of all together under an empty name.

    Raises:
        ValueError: there are parameters that the reference does not know.
    """
    strangers = sorted(found.keys() - reference.keys())
    if strangers:
        raise ValueError(f"no reference for {', '.join(strangers[:3])}")
    squares = {name: _squares(reference[name]) for name in found}
    differences = {name: _squares(item.whole.float() - reference[name].float()) for name, item in found.items()}
    count = sum(reference[name].numel() for name in found)
    floor = _FLOOR**2 * sum(squares.values()) / count
    relative = {
        name: (differences[name] / max(squares[name], floor * reference[name].numel(), 1e-60)) ** 0.5 for name in found
    }
    return {**relative, "": (sum(differences.values()) / max(sum(squares.values()), 1e-60)) ** 0.5}


def _squares(tensor: Tensor) -> float:
    return float(tensor.detach().double().square().sum())
