"""``lowered``: what an op or a region is at a lower level.

Place: asked by ``contracts.asked`` for backends with ``Traits.level``, and by tests of such backends.
Non-goals: see ``op_lowering``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import overload

from mixbackend.contracts.errors import LoweringError
from mixbackend.contracts.op_levels import LEVELS, OpLevel, operators_of
from mixbackend.contracts.ops import Argument, NodeRef, OpView
from mixbackend.contracts.region import Region


@overload
def lowered(asked: OpView, level: OpLevel) -> tuple[OpView, ...]: ...


@overload
def lowered(asked: Region, level: OpLevel) -> Region: ...


def lowered(asked: OpView | Region, level: OpLevel) -> tuple[OpView, ...] | Region:
    """What an op or a region is at a level: only operators of ``operators_of(level)``.

    Args:
        asked: an op as it is judged, or a region as it is cut, of the level ``aten``.
        level: ``aten`` leaves it as it is.

    Returns:
        Of an op the ops that compute it, in order, the last steps of each result among them; they read its inputs under
        their own names. Of a region the region with the same inputs, outputs and order of results; what the lowering
        assumed about sizes is in its ``preconditions``.

    Raises:
        LoweringError: an op is of no lower level.
        ValueError: there is no such level.
    """
    if level not in LEVELS:
        raise ValueError(f"{level!r} is no level of operators: there are {', '.join(LEVELS)}")
    if isinstance(asked, Region):
        if asked.level == level:
            return asked
        if asked.level != "aten":
            raise LoweringError(f"region {asked.id} is of level {asked.level} already")
        if level == "aten":
            return asked
        from mixbackend.contracts.region_lowering import lower_region

        return lower_region(asked, level)
    as_it_is = level == "aten" or asked.op == "getitem" or asked.op in operators_of(level)
    return (asked,) if as_it_is else _lowered_op(asked, level)


def _lowered_op(view: OpView, level: OpLevel) -> tuple[OpView, ...]:
    # Decompositions are loaded where they are used: without a backend of a lower level they are never imported.
    from mixbackend.contracts.op_lowering import lower_op

    lowering = lower_op(view, level)
    names = {node.name: item.name for node, item in zip(lowering.inputs, view.inputs, strict=True)}
    names |= {step.name: f"{view.node.name}__{step.name}" for step in lowering.steps}
    return tuple(_under_names(inner, view, names) for inner in lowering.views)


def _under_names(inner: OpView, view: OpView, names: dict[str, str]) -> OpView:
    def argument(value: Argument) -> Argument:
        if isinstance(value, NodeRef):
            return NodeRef(names.get(value.name, value.name))
        return tuple(map(argument, value)) if isinstance(value, tuple) else value

    node = replace(
        inner.node,
        name=names[inner.node.name],
        arguments=tuple((name, argument(value)) for name, value in inner.node.arguments),
        module=view.node.module,
        module_class=view.node.module_class,
        source=view.node.source,
    )
    inputs = tuple(replace(item, name=names.get(item.name, item.name)) for item in inner.inputs)
    return replace(inner, node=node, inputs=inputs)
