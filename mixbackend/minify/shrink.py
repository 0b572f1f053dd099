"""Shrink: smaller sizes, plainer values and types, as long as it still fails.

Place: second step of making a region small, after ``reduction``. Input: a piece that fails, and the test. Output: a
piece of the same ops that fails.
Order: numbers in place of symbols; sizes, each with all that are equal to it; rows of memory without gaps; constants as
other inputs; float32; values that a seed gives, so that a script needs none.
Invariants: every step is optional; one that fails otherwise, or that torch refuses, is not taken. Nodes keep their
names, so that patterns stay matched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from mixbackend.contracts import InputRole
from mixbackend.minify.piece import Piece, whole
from mixbackend.minify.rebuild import rebuilt
from mixbackend.minify.reduction import Fails

_NO_SIZES = frozenset({"dim", "dims", "stride", "padding", "dilation", "groups", "kernel_size", "correction", "index"})
"""Arguments with numbers that are no sizes, whatever they equal."""
_SEED = 0

Resized = Callable[[int], int]


def shrunk(piece: Piece, fails: Fails) -> Piece:
    """The piece, as small and plain as it goes."""
    if piece.writes:
        # What it draws or writes would be other things.
        return _first(piece, fails, [partial(seeded, piece)])
    piece = _smaller(_first(piece, fails, [partial(concrete, piece)]), fails)
    for step in (dense, without_constants, single_precision, seeded):
        piece = _first(piece, fails, [partial(step, piece)])
    return piece


def _first(piece: Piece, fails: Fails, candidates: Sequence[Callable[[], Piece | None]]) -> Piece:
    """The first of the candidates that fails, or the piece itself."""
    for make in candidates:
        made = None
        with contextlib.suppress(Exception):  # torch refuses it: there is no such piece
            made = make()
        if made is not None and made.ops <= piece.ops and fails(made):
            return made
    return piece


# --- sizes -----------------------------------------------------------------------------------------------------------


def _smaller(piece: Piece, fails: Fails) -> Piece:
    """Every size as small as it goes, large ones first, until nothing changes."""
    while True:
        before = piece
        for size in sorted({size for value in tensors(piece) for size in value.shape if size > 1}, reverse=True):
            piece = _with_smaller(piece, size, fails)
        if piece is before:
            return piece


def _with_smaller(piece: Piece, size: int, fails: Fails) -> Piece:
    """The least power of two that will do, then what lies between it and the half of it."""

    def at(new: int) -> Piece | None:
        found = _first(piece, fails, [partial(resized, piece, size, new, multiples) for multiples in (False, True)])
        return None if found is piece else found

    powers = [1 << power for power in range(size.bit_length()) if 1 << power < size]
    found, new = next(((made, new) for new in powers if (made := at(new)) is not None), (None, size))
    if found is None:
        return piece
    low = new // 2
    while new - low > 1:
        middle = (low + new) // 2
        made = at(middle)
        found, new, low = (made, middle, low) if made is not None else (found, new, middle)
    return found


def resized(piece: Piece, old: int, new: int, multiples: bool = False) -> Piece | None:
    """The piece with another size in place of one, with the first values; ``None`` where that changes nothing.

    Args:
        multiples: whether multiples of it, as products of sizes are, shrink with it.
    """

    def size_of(size: int) -> int:
        return size // old * new if size and size % old == 0 and (multiples or size == old) else size

    inputs = [
        _narrowed(value, size_of, old, new) if isinstance(value, torch.Tensor) else value for value in piece.inputs
    ]
    pairs = zip(inputs, piece.inputs, strict=True)
    if all(not isinstance(value, torch.Tensor) or value.shape == other.shape for value, other in pairs):
        return None
    return rebuilt(piece, inputs, lambda name, value: value if name in _NO_SIZES else _mapped(value, size_of))


def _narrowed(value: torch.Tensor, size_of: Resized, old: int, new: int) -> torch.Tensor:
    part = value
    for dim, size in enumerate(value.shape):
        part = part.narrow(dim, 0, size_of(size))
    whole_numbers = not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
    if whole_numbers and part.numel() and new <= int(part.max()) < old:
        # Positions in what has become smaller stay positions.
        part = part.remainder(new)
    return part.clone()


def _mapped(value: Any, size_of: Resized) -> Any:
    if isinstance(value, (tuple, list)):
        return [_mapped(item, size_of) for item in value]
    return size_of(value) if isinstance(value, int) and not isinstance(value, bool) and value > 1 else value


def concrete(piece: Piece) -> Piece | None:
    """The piece with numbers in place of symbols."""
    symbolic = piece.region.dynamic or any(not isinstance(value, torch.Tensor) for value in piece.inputs)
    return rebuilt(piece, piece.inputs) if symbolic else None


# --- plainer ---------------------------------------------------------------------------------------------------------


def dense(piece: Piece) -> Piece | None:
    """Every input row-major."""
    if all(value.is_contiguous() for value in tensors(piece)):
        return None
    return rebuilt(piece, [_to(value, lambda tensor: tensor.contiguous()) for value in piece.inputs])


def without_constants(piece: Piece) -> Piece | None:
    """No input is a constant: nothing is bound."""
    weights = [name for name, role in piece.roles.items() if role.is_weight]
    values = {item.name: value for item, value in zip(piece.region.inputs, piece.inputs, strict=True)}
    roles = {**piece.roles, **dict.fromkeys(weights, InputRole.ACTIVATION)}
    return whole(piece.region, piece.region.graph_module, roles, values) if weights else None


def single_precision(piece: Piece) -> Piece | None:
    """Everything that is floating in float32."""
    if all(not value.is_floating_point() or value.dtype is torch.float32 for value in tensors(piece)):
        return None
    inputs = [
        _to(value, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor) for value in piece.inputs
    ]
    return rebuilt(piece, inputs, lambda name, value: _single(value))


def _single(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value.is_floating_point else value


def seeded(piece: Piece) -> Piece | None:
    """Values of ``seeded_values``."""
    values = seeded_values(piece.inputs)
    changed = any(mine is not old for mine, old in zip(values, piece.inputs, strict=True))
    return Piece(piece.region, tuple(values)) if changed else None


def seeded_values(inputs: Sequence[Any]) -> list[Any]:
    """Random numbers in place of floating ones, laid out as these; others stay."""
    generator = torch.Generator().manual_seed(_SEED)
    return [_seeded(value, generator) if is_seeded(value) else value for value in inputs]


def is_seeded(value: Any) -> bool:
    """Whether a seed may give its values."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def span_of(value: torch.Tensor) -> int:
    """How many elements there are from the first to the last in memory."""
    if not value.numel():
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))


def _seeded(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    flat = torch.randn(span_of(value), generator=generator).to(value.device, value.dtype)
    return flat.as_strided(value.shape, value.stride())


def tensors(piece: Piece) -> Iterator[torch.Tensor]:
    """Those among the inputs."""
    return (value for value in piece.inputs if isinstance(value, torch.Tensor))


def _to(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return change(value) if isinstance(value, torch.Tensor) else value
