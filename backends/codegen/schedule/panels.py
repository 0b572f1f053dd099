"""Panels: how many columns of a packed matrix lie side by side.

Place: below ``packed_products``; ``targets/cpp/product.hpp`` multiplies with what is packed so.
Non-goals: tiles of rows, and blocks of terms: they are the header's, which knows registers and caches.
"""

from __future__ import annotations

import sympy

_WIDE_LANES = 16
_VECTORS = {True: (3, 4, 2, 1), False: (2, 3, 1)}
"""Registers of a panel's row, by whether registers are wide, of which there are more; the first is best."""
_NARROW = {2: 1.1, 1: 1.4}
"""What a column takes in panels of so few wide registers, beside one in others: they load more for each product."""


def panel_columns(columns: sympy.Expr, lanes: int) -> int:
    """Columns of a panel: as few as possible that are not there.

    Args:
        columns: of the matrix.
        lanes: float32 numbers of a register.
    """
    is_wide = lanes >= _WIDE_LANES
    choices = _VECTORS[is_wide]
    if not columns.is_Integer:
        return choices[0] * lanes

    def cost(vectors: int) -> float:
        made = -(-int(columns) // (vectors * lanes)) * vectors
        return made * (_NARROW.get(vectors, 1.0) if is_wide or vectors == 1 else 1.0)

    return min(choices, key=cost) * lanes
