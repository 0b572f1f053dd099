"""Verdicts of the code generator: an op is supported if its rule lowers it.

Place: called by the backend's ``judge``.
Invariants: asks the rule itself, so that a claim is never wider than what can be lowered; remembered per signature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import sympy

from mixbackend.backends.codegen.ir.scalar import Constant
from mixbackend.backends.codegen.ir.stages import Scatter, Stage, Template
from mixbackend.backends.codegen.lower.lowering import TAKE_APART, Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.backends.codegen.lower.sizes import import_size
from mixbackend.backends.codegen.lower.table import RULES
from mixbackend.contracts import OpView, Supported, SymbolicSize, TensorMeta, Unsupported, Verdict


def judge_op(
    view: OpView,
    templates: frozenset[str] | None = None,
    objection: Callable[[Stage], str | None] | None = None,
    drawing_threads: int | None = None,
    in_order: bool = True,
) -> Verdict:
    """Whether the op's rule covers this use.

    Args:
        templates: that the target has; ``None`` for all that there are.
        objection: what the target says to a stage, see ``Target.objection``.
        drawing_threads: see ``Lowering``.
        in_order: whether the target makes updates that meet in row-major order; otherwise the order differs from run
            to run.
    """
    if view.op == TAKE_APART:
        # Its producer was judged with all its results.
        return Supported()
    if RULES.get(view.op) is None:
        return Unsupported("unknown-op", f"no lowering rule for {view.op}")
    verdict, stages = _judge(view, drawing_threads)
    needed = {stage.name for stage in stages if isinstance(stage, Template)}
    missing = sorted(needed - templates) if templates is not None else []
    if missing:
        return Unsupported("unknown-op", f"the target has no template {', '.join(missing)}")
    if view.deterministic and not in_order and any(map(_depends_on_order, stages)):
        return Unsupported("deterministic", f"the target makes the updates of {view.op} in any order")
    objections = [] if objection is None else list(filter(None, map(objection, stages)))
    return Unsupported("argument", f"the target has {objections[0]}") if objections else verdict


def _depends_on_order(stage: Stage) -> bool:
    """Whether updates that meet give other bits in another order: sums that round, and the last of several values."""
    if not isinstance(stage, Scatter) or stage.mode in ("max", "min"):
        return False
    if stage.mode == "set":
        return not isinstance(stage.value, Constant)
    return stage.value.dtype.is_floating_point


@functools.lru_cache(maxsize=8192)
def _judge(view: OpView, drawing_threads: int | None) -> tuple[Verdict, tuple[Stage, ...]]:
    """The verdict, and the stages that the op becomes."""
    lowering = Lowering(drawing_threads)
    try:
        for item in view.inputs:
            if isinstance(item.meta, TensorMeta):
                lowering.input(item.name, item.meta)
            elif isinstance(item.meta, (int, SymbolicSize)):
                lowering.bind(item.name, import_size(item.meta))
            else:
                lowering.bind(item.name, sympy.Symbol(f"n_{item.name}", real=True))
        lowering.lower(view)
    except RefusedError as refused:
        return refused.verdict, ()
    return Supported(), tuple(lowering.stages)
