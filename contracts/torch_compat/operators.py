"""Operators: what schemas tell, decompositions, torch's database of samples.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat.prim_forms import OURS
from mixbackend.contracts.torch_compat.result_types import with_eager_decompositions


@dataclass(frozen=True, slots=True)
class SchemaArgument:
    """One argument of an operator's schema."""

    name: str
    has_default: bool
    default: Any
    keyword_only: bool
    length: int | None = None

    def is_default(self, value: Any) -> bool:
        """Whether a value is what the argument is without being given; lists may be written as tuples."""
        default = tuple(self.default) if isinstance(self.default, list) else self.default
        return self.has_default and type(value) is type(default) and bool(value == default)


def is_operator(target: object) -> bool:
    """Whether an fx target is one overload of a torch operator."""
    return isinstance(target, torch._ops.OpOverload)


def is_higher_order(target: object) -> bool:
    """Whether an fx target is a higher-order operator (cond, while, flex attention, ...)."""
    return isinstance(target, torch._ops.HigherOrderOperator)


def schema_arguments(operator: Any) -> tuple[SchemaArgument, ...]:
    """The arguments of an operator overload, in schema order."""
    return tuple(
        SchemaArgument(
            argument.name,
            argument.has_default_value(),
            argument.default_value if argument.has_default_value() else None,
            argument.kwarg_only,
            argument.N,
        )
        for argument in operator._schema.arguments
    )


def is_mutating(operator: Any) -> bool:
    """Whether an operator overload writes into an argument."""
    return bool(operator._schema.is_mutable)


def returns_nothing(operator: Any) -> bool:
    """Whether an operator overload has no result."""
    return not operator._schema.returns


def decomposition_table(level: str) -> dict[Any, Any]:
    """Decompositions of a level of ``contracts.DecompositionLevel``; results have the types that eager gives."""
    return with_eager_decompositions({**_torch_decompositions(level), **OURS.get(level, {})})


def _torch_decompositions(level: str) -> dict[Any, Any]:
    if level == "none":
        return {}
    if level == "inductor":
        # Some of its decompositions look for this module without importing it.
        import torch._inductor.lowering
        from torch._inductor.decomposition import select_decomp_table

        return dict(select_decomp_table())
    import torch._decomp

    if level == "core_aten":
        return dict(torch._decomp.core_aten_decompositions())
    if level == "prims":
        import torch._refs

        return dict(torch._decomp.decomposition_table)
    raise ValueError(f"{level!r} is not a decomposition level: none, core_aten, prims or inductor")


def operator_by_name(name: str) -> Any | None:
    """The operator overload called ``aten.add.Tensor``; ``None`` if torch has none of this name."""
    parts = name.split(".")
    if len(parts) != 3:
        return None
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    return getattr(packet, parts[2], None)


def pure_operators() -> Iterator[Any]:
    """Torch's own operators that write into none of their arguments, and that can be in a captured graph."""
    for called in torch._C._dispatch_get_all_op_names():
        library, _, name = called.partition("::")
        whole = f"{library}.{name}" if "." in name else f"{library}.{name}.default"
        operator = operator_by_name(whole) if library == "aten" else None
        arguments = () if operator is None else operator._schema.arguments
        if operator is not None and not any(item.alias_info and item.alias_info.is_write for item in arguments):
            yield operator


def composite_implicit(operator: Any) -> bool:
    """Whether an operator overload is defined by other operators for every device (``reshape``, ``linear``)."""
    return operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def kernels_are_composite(operator: Any) -> bool:
    """Whether torch's own kernels define an operator by others: graphs are captured without it."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


def operator_database() -> list[Any]:
    """torch's own database of operators with sample inputs (``OpInfo``); needs the package ``expecttest``."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

    # For each sample the whole stack is read, with source lines, to find a unittest: far slower than the sample itself.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None  # type: ignore[attr-defined]
    return op_db
