"""Storage order: the axes of a weight as they lie in memory.

Place: between the lowering, which declares a weight's model input in this order, and the runtimes, which hand the
weight over as it lies. A transposed weight (the ``t`` of a linear layer) thereby crosses without a copy, and the
lowering sees that it is a transposed one.
Invariants: follows from the traced meta alone, so a stored model and the code that loads it agree.
"""

from __future__ import annotations

from mixbackend.contracts import RegionInput, TensorMeta


def stored_order(item: RegionInput) -> tuple[int, ...] | None:
    """Axes from the outermost in memory to the innermost; ``None`` where that is no news.

    That is: for activations (their strides may differ from the traced ones), for row-major weights, and for weights
    with gaps or shared elements, which have no order without a copy.
    """
    meta = item.meta
    if not isinstance(meta, TensorMeta) or not item.role.is_weight or meta.dynamic:
        return None
    sizes = [int(size) for size in meta.shape]  # type: ignore[arg-type]
    strides = [int(step) for step in meta.stride]  # type: ignore[arg-type]
    natural = tuple(range(len(sizes)))
    if 0 in sizes or _is_dense(sizes, strides, natural):
        return None
    order = tuple(sorted(natural, key=lambda axis: -strides[axis]))
    return order if _is_dense(sizes, strides, order) else None


def _is_dense(sizes: list[int], strides: list[int], order: tuple[int, ...]) -> bool:
    expected = 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != expected:
            return False
        expected *= sizes[axis]
    return True
