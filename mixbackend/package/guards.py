"""Guards: what torch.export asserts of sizes beyond their ranges, as plain relations.

Place: below ``exported``. Input: what tracing noted about symbols. Output: ``Guard`` values.
Guards about sizes that depend on values are ops of the graph and are not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sympy

from mixbackend.contracts import PackageError, RegionTextError
from mixbackend.package.signature import Guard, size_text

_RELATIONS = {
    sympy.Eq: "==",
    sympy.Ne: "!=",
    sympy.StrictLessThan: "<",
    sympy.LessThan: "<=",
    sympy.StrictGreaterThan: ">",
    sympy.GreaterThan: ">=",
}


def guards_of_symbols(shape_env: Any, renamed: Mapping[sympy.Symbol, sympy.Expr]) -> Iterator[Guard]:
    """The guards of a program.

    Args:
        shape_env: of its trace.
        renamed: names that symbols have in the graph's text.

    Raises:
        PackageError: one of them is no relation of sizes.
    """
    for expression in dict.fromkeys(part for guard in shape_env.guards for part in _parts(guard.expr)):
        if expression is sympy.true or not expression.free_symbols <= set(renamed):
            continue
        relation = _RELATIONS.get(type(expression))
        try:
            if relation is None:
                raise RegionTextError("it is no comparison")
            left, right = (size_text(side.xreplace(dict(renamed))) for side in expression.args)
        except RegionTextError as error:
            raise PackageError(
                f"the program asserts {expression}, which a package cannot hold: {error.what}",
                hint="export it with sizes that need no such assertion",
            ) from error
        yield Guard(relation=relation, left=left, right=right)  # type: ignore[arg-type]


def _parts(expression: Any) -> Iterator[Any]:
    """The parts of a conjunction."""
    if isinstance(expression, sympy.And):
        for part in expression.args:
            yield from _parts(part)
    else:
        yield expression
