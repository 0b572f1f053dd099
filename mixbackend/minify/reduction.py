"""Reduction: the fewest ops of a region that still fail, by delta debugging.

Place: first step of making a region small; ``shrink`` follows. Input: a piece that fails, and a test that says whether
another one does in the same way. Output: a piece that fails, of which no op can be left out alone.
Method: parts of the list of ops are tried alone, then the rest without one part; the parts become smaller when nothing
fails any more. An op that alone is at fault is found with about two tests for each halving of the list. Time is lost by
many ops at once: of what is slow, the half that loses more is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from mixbackend.minify.piece import Piece

Fails = Callable[[Piece], bool]
"""Whether a piece fails as the region did; false once there is no time left."""


def fewest_ops(piece: Piece, fails: Fails) -> Piece:
    """Leave out ops, then results, as long as it still fails; what is left was asked about, or is the given piece."""
    return fewest_results(_fewest(piece, piece.ops, piece.only, fails), fails)


def fewest_results(piece: Piece, fails: Fails) -> Piece:
    """Leave out results, with the ops that only they needed."""
    names = [item.name for item in piece.region.outputs]
    return _fewest(piece, len(names), lambda kept: piece.returning([names[place] for place in kept]), fails)


def _fewest(piece: Piece, items: int, with_only: Callable[[Sequence[int]], Piece], fails: Fails) -> Piece:
    tried: dict[tuple[int, ...], Piece | None] = {tuple(range(items)): piece}

    def still(kept: Sequence[int]) -> bool:
        key = tuple(kept)
        if key not in tried:
            tried[key] = _failing(lambda: with_only(key), fails)
        return tried[key] is not None

    found = tried[tuple(smallest(range(items), still))]
    assert found is not None, "what is left was tried"
    return found


def slowest_ops(piece: Piece, loss_of: Callable[[Piece], float | None]) -> Piece:
    """The part that loses most, as long as a half of it is slow.

    Args:
        loss_of: seconds that a piece loses, ``None`` where it is not slow.
    """
    begun, kept = piece, list(range(piece.ops))
    while len(kept) > 1:
        parts = [begun.only(chunk) for chunk in _chunks(kept, 2)]
        losses = [loss_of(part) for part in parts]
        _, place = max((-1.0 if loss is None else loss, place) for place, loss in enumerate(losses))
        if losses[place] is None:
            break
        piece, kept = parts[place], _chunks(kept, 2)[place]
    return piece


def smallest(items: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """A part of what fails that still fails, and does not without any one of its items.

    Args:
        items: all of which together fail; they are not tried.
        fails: says so of a part.
    """
    left, parts = list(items), 2
    while len(left) > 1:
        chunks = _chunks(left, min(parts, len(left)))
        alone = next((chunk for chunk in chunks if fails(chunk)), None)
        if alone is not None:
            left, parts = alone, 2
            continue
        rests = ([item for item in left if item not in set(chunk)] for chunk in chunks)
        # Of two parts, the rest without one is the other.
        rest = next((rest for rest in rests if fails(rest)), None) if len(chunks) > 2 else None
        if rest is not None:
            left, parts = rest, max(len(chunks) - 1, 2)
        elif len(chunks) == len(left):
            break
        else:
            parts = 2 * len(chunks)
    return left


def _chunks(items: list[int], parts: int) -> list[list[int]]:
    bounds = [len(items) * place // parts for place in range(parts + 1)]
    return [items[first:last] for first, last in itertools.pairwise(bounds)]


def _failing(make: Callable[[], Piece], fails: Fails) -> Piece | None:
    """The piece, if it fails; what cannot be cut does not."""
    try:
        piece = make()
    except Exception:  # a part that is no region by itself
        return None
    return piece if fails(piece) else None
