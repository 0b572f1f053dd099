"""What makes two ops the same question to a backend: the structural signature of an ``OpView``.

Place: helper of judging and pricing, so that the identical layers of a model are judged and priced once.
Input: op views. Output: hashable keys; equal keys mean equal operator, arguments, metas, roles, tags, module class,
phase and whether results must repeat. Names, module paths and source lines are left out: a verdict must not depend on
them.
Invariants: plain values are compared with their type, since ``1 == 1.0 == True`` in Python but not in torch.
"""

from __future__ import annotations

from collections.abc import Hashable

from mixbackend.contracts import Argument, NodeRef, OpView, ValueMeta


class MetaNumbers:
    """Gives equal metas the same small number; hashing a meta is slow, and a graph repeats few of them."""

    def __init__(self) -> None:
        self._number_by_value: dict[Hashable, int] = {}
        self._number_by_identity: dict[int, int] = {}
        self._kept: list[ValueMeta] = []

    def __call__(self, meta: ValueMeta) -> int:
        """Number of a meta."""
        number = self._number_by_identity.get(id(meta))
        if number is None:
            number = self._number_by_value.setdefault((type(meta).__name__, meta), len(self._number_by_value))
            self._number_by_identity[id(meta)] = number
            self._kept.append(meta)
        return number


def signature_of(view: OpView, number_of: MetaNumbers) -> Hashable:
    """Key of everything a verdict or a cost may depend on."""
    slot_by_name = {item.name: slot for slot, item in enumerate(view.inputs)}
    node = view.node
    return (
        node.op,
        tuple(_abstract(value, slot_by_name) for _, value in node.arguments),
        tuple((number_of(item.meta), item.role.value) for item in view.inputs),
        tuple(number_of(meta) for meta in node.outputs),
        node.tags,
        node.bodies,
        node.module_class,
        view.phase,
        view.deterministic,
    )


def _abstract(value: Argument, slot_by_name: dict[str, int]) -> Hashable:
    if isinstance(value, NodeRef):
        return ("input", slot_by_name[value.name])
    if isinstance(value, tuple):
        return tuple(_abstract(item, slot_by_name) for item in value)
    if isinstance(value, (float, complex)):
        return (type(value).__name__, repr(value))
    return (type(value).__name__, value)
