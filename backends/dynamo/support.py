"""What a backend of Dynamo is given: operators, types, devices, sizes.

Place: ``DynamoBackend.judge``. Input: an op view. Output: a verdict.
Invariants: random, writing, collective and higher-order ops, and those with sizes that depend on values, are refused
whatever the user's word: the contract of Dynamo's backends says nothing of how they are kept in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, Union

import torch

from mixbackend.contracts import (
    ContractError,
    OpTag,
    OpView,
    Supported,
    SymbolicSize,
    TensorMeta,
    Unsupported,
    ValueMeta,
    Verdict,
    refuse_special,
)
from mixbackend.contracts.torch_compat import operator_by_name

Level = Literal["pure", "aten"]
LEVELS: tuple[Level, ...] = ("pure", "aten")

Supports = Union[Level, Collection[Any], Callable[[OpView], Union[bool, Verdict]]]
"""A level, operators or their names, or a function of an op view."""

_TORCHS = frozenset({"aten", "prims"})


@dataclass(frozen=True)
class Support:
    """See the module's docstring.

    Attributes:
        ops: a level, names of operators (without overload they mean every overload), or a function.
        dtypes, devices: of all tensors.
        dynamic: whether sizes may be symbolic.
    """

    ops: Level | frozenset[str] | Callable[[OpView], bool | Verdict]
    dtypes: frozenset[torch.dtype]
    devices: frozenset[str]
    dynamic: bool

    @property
    def takes_all(self) -> bool:
        """Whether nearly every operator is taken."""
        return isinstance(self.ops, str)

    def judge(self, view: OpView) -> Verdict:
        """The verdict on one op."""
        return refuse_special(view) or _layout(view) or self._values(view) or self._asked(view)

    def _values(self, view: OpView) -> Unsupported | None:
        metas: list[ValueMeta] = [*(item.meta for item in view.inputs), *view.outputs]
        for meta in metas:
            if isinstance(meta, TensorMeta) and meta.device.type not in self.devices:
                return Unsupported("device", f"{meta} is not on {', '.join(sorted(self.devices))}")
            if isinstance(meta, TensorMeta) and meta.dtype not in self.dtypes:
                return Unsupported("dtype", f"{meta.dtype} in {view.op}")
            for size in (*meta.shape, *meta.stride) if isinstance(meta, TensorMeta) else (meta,):
                refused = self._size(size, view)
                if refused is not None:
                    return refused
        return None

    def _size(self, size: object, view: OpView) -> Unsupported | None:
        if not isinstance(size, SymbolicSize):
            return None
        if not self.dynamic:
            return Unsupported(
                "dynamic-shape", f"symbolic size {size} in {view.op}; from_dynamo(dynamic=True) takes it"
            )
        if size.hint is None or not size.expression.is_integer:
            return Unsupported("data-dependent", f"{size} in {view.op} depends on values, or is no integer")
        return None

    def _asked(self, view: OpView) -> Verdict:
        op = view.op
        if op == "getitem" or self.ops == "pure":
            return Supported()
        if self.ops == "aten":
            mine = op.partition(".")[0] in _TORCHS
        elif isinstance(self.ops, frozenset):
            mine = op in self.ops or op.rpartition(".")[0] in self.ops
        else:
            assert callable(self.ops)
            answer = self.ops(view)
            if not isinstance(answer, bool):
                return answer
            mine = answer
        return Supported() if mine else Unsupported("unknown-op", f"{op} is not among what it was said to support")


def ops_of(supports: Supports) -> Level | frozenset[str] | Callable[[OpView], bool | Verdict]:
    """What the user said, as ``Support.ops``.

    Raises:
        ContractError: it is no level, names an operator that torch has not, or is nothing of the kind.
    """
    if isinstance(supports, str):
        if supports not in LEVELS:
            raise _refused(f"{supports!r} is no level: there are {' and '.join(map(repr, LEVELS))}")
        return supports
    if callable(supports) and not hasattr(supports, "overloads"):
        return supports
    if not isinstance(supports, Collection):
        raise _refused(f"{supports!r} says no operators")
    names = frozenset(str(item) for item in supports)
    unknown = sorted(name for name in names if not _exists(name))
    if unknown or not names:
        what = f"torch has no operator {', '.join(map(repr, unknown))}" if unknown else "it names no operator"
        raise _refused(f"{what}; names are as 'aten.relu' or 'aten.add.Tensor'")
    return names


def _layout(view: OpView) -> Unsupported | None:
    if OpTag.STRIDE_SENSITIVE in view.node.tags:
        return Unsupported("layout", f"{view.op} reads memory by position, and compilers change layouts")
    return None


def _exists(name: str) -> bool:
    parts = name.split(".")
    if len(parts) == 2:
        return getattr(getattr(torch.ops, parts[0]), parts[1], None) is not None
    return operator_by_name(name) is not None


def _refused(what: str) -> ContractError:
    hint = f"give from_dynamo(supports=...) one of {LEVELS}, a set of operators, or a function of an OpView"
    return ContractError(what=f"supports: {what}", hint=hint)
