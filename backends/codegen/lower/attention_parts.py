"""Attention of one row of queries as the template ``attention_parts``, and what joins its parts.

Place: called by ``lower.attention``. Input: the tensors of an attention of known sizes. Output: its result.
A step of generation reads long caches for few heads: parts of a cache are read by blocks of their own at once (flash
decoding, Dao et al. 2023), and keys that heads share by one block, once. What joins the parts is a fold over them.
Invariants: a row of scores that are minus infinity throughout gives zeros, as torch's kernels do.
Non-goals: symbolic sizes, which plain stages serve.
"""

from __future__ import annotations

import math

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import FloorDiv, floor_div, modulo
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply, is_element
from mixbackend.backends.codegen.ir.stages import Map
from mixbackend.backends.codegen.ir.templates import ATTENTION_PARTS
from mixbackend.backends.codegen.lower import view
from mixbackend.backends.codegen.lower.access import read_through
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

LEAST_POSITIONS = 64
"""Keys of a part at least: what one block holds."""
MOST_PARTS = 64
MOST_BLOCKS = 1024
"""Of all heads and parts together: more than that keep every unit busy."""
MOST_HEADS = 8
"""That share keys: the code of each follows that of the one before."""
MOST_WIDTH = 256


def attention_in_parts(
    lowering: Lowering, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor | None:
    """``softmax(query key^T scale + mask) value`` of one query per head; ``None`` where plain stages are better.

    Args:
        query: [batch, head, 1, feature].
        key, value: [batch, head, position, feature].
        mask: [batch, head, 1, position].
    """
    tensors = (query, key, value)
    if not all(size.is_Integer for tensor in tensors for size in tensor.sizes):
        return None
    batch, heads, _, width = query.sizes
    positions, depth = key.sizes[2], value.sizes[3]
    if max(width, depth) > MOST_WIDTH:
        return None
    shared = _shared(lowering, key)
    if shared != _shared(lowering, value) or heads % shared or shared > MOST_HEADS:
        shared = 1
    groups = heads // shared
    length = part_length(int(batch * groups), int(positions))
    rows, parts = (batch, groups, sympy.Integer(shared)), sympy.Integer(-(-int(positions) // length))

    def of_head(tensor: Tensor) -> Tensor:
        """[batch, head, 1, ...] by group and head of it."""
        sizes = (*rows, tensor.sizes[3])
        return Tensor(
            sizes, tensor.dtype, lambda at: tensor.at((at[0], at[1] * shared + at[2], sympy.Integer(0), at[3]))
        )

    def of_group(tensor: Tensor) -> Tensor:
        """[batch, head, ...] by group: its first head has what all of them read."""
        sizes = (batch, groups, *tensor.sizes[2:])
        return Tensor(sizes, tensor.dtype, lambda at: tensor.at((at[0], at[1] * shared, at[2], at[3])))

    expanded = None if mask is None else view.expand(mask, (batch, heads, 1, positions))
    sums, largest, total = lowering.template(
        ATTENTION_PARTS,
        (of_head(query), of_group(key), of_group(value), None if expanded is None else of_head(expanded)),
        (((*rows, parts, depth), torch.float32), ((*rows, parts), torch.float32), ((*rows, parts), torch.float32)),
        (("scale", scale), ("positions", length)),
    )
    joined = _joined(lowering, sums, largest, total)

    def result(index: Index) -> Expr:
        group, head = (part(index[1], sympy.Integer(shared), lowering.ranges) for part in (floor_div, modulo))
        return joined.at((index[0], group, head, index[3]))

    return lowering.map((batch, heads, 1, depth), query.dtype, result)


def part_length(rows: int, positions: int) -> int:
    """Keys of a part: a power of two, as few as keep every block busy and the joining of parts short."""
    parts = max(1, min(MOST_PARTS, MOST_BLOCKS // max(rows, 1)))
    return max(LEAST_POSITIONS, 1 << (-(-positions // parts) - 1).bit_length())


def _joined(lowering: Lowering, sums: Tensor, largest: Tensor, total: Tensor) -> Tensor:
    """What the parts are together. Each element looks for the largest score itself: one kernel then does it all."""
    *rows, parts, depth = sums.sizes
    sizes, inside = (*rows, depth), (parts,)
    (highest,) = lowering.reduce("max", sizes, inside, lambda at, part: largest.at((*at[:3], *part)), (torch.float32,))

    def weight(at: Index, part: Index) -> Expr:
        return exponential_beside(largest.at((*at[:3], *part)), highest.at(at))

    (whole,) = lowering.reduce(
        "sum", sizes, inside, lambda at, part: weight(at, part) * total.at((*at[:3], *part)), (torch.float32,)
    )
    (joined,) = lowering.reduce(
        "sum", sizes, inside, lambda at, part: weight(at, part) * sums.at((*at[:3], *part, at[3])), (torch.float32,)
    )

    return lowering.map(sizes, torch.float32, lambda at: share_of(joined.at(at), whole.at(at)))


def exponential_beside(score: Expr, largest: Expr) -> Expr:
    """``exp(score - largest)``, beside 0 where the largest score is minus infinity."""
    lowest, zero = Constant(torch.float32, -math.inf), Constant(torch.float32, 0.0)
    return apply("exp", score - apply("where", apply("eq", largest, lowest), zero, largest))


def share_of(sums: Expr, total: Expr) -> Expr:
    """``sums / total``; 0 where the total is."""
    zero = Constant(torch.float32, 0.0)
    return apply("where", apply("eq", total, zero), zero, sums / total)


def _shared(lowering: Lowering, tensor: Tensor) -> int:
    """How many heads in a row read the same keys or values, as far as the copies that a model makes of them tell."""
    made = {stage.target: stage for stage in lowering.stages if isinstance(stage, Map)}
    loops = lowering.loops(tensor.sizes)
    value = tensor.at(tuple(loop.index for loop in loops))
    while is_element(value) and value.tensor in made and is_element(source := made[value.tensor].value):
        value = read_through(lowering, made[value.tensor], value, source)
    head = loops[1].index
    # A mask, or an index that values decide, may differ from head to head.
    index = value.index if is_element(value) else ()
    divisors = {item.args[1] for part in index for item in part.atoms(FloorDiv) if item.args[0] == head}
    if len(divisors) != 1 or not (divisor := next(iter(divisors))).is_Integer:
        return 1
    group = sympy.Symbol("group", integer=True, nonnegative=True)
    rest = [part.xreplace({FloorDiv(head, divisor): group}) for part in index]
    return 1 if any(head in part.free_symbols for part in rest) else int(divisor)
