"""The user's wishes as data: terms of the same energy that costs are in.

Place: made from the configuration's rules; read by the partitioner.
Invariants: the first rule that matches a node decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from mixbackend.contracts.ops import OpView, Phase
from mixbackend.contracts.tensors import TensorMeta


@dataclass(frozen=True, slots=True)
class NodeMatch:
    """Which nodes a rule is about; an empty field matches everything.

    Attributes:
        op: shell-style pattern of the operator (``aten.convolution``, ``aten.add.*``); without an overload name it
            matches every overload.
        module: pattern of the module path (``encoder.layer.*.attention``); also matches everything inside.
        module_class: pattern of the module's class name.
        pattern: name of a backend's pattern that the node is part of.
        phase: inference, forward or backward.
        dtypes: names (``float16``) of which the first tensor output, or input, must have one.
        device: device type (``cuda``).
    """

    op: str = ""
    module: str = ""
    module_class: str = ""
    pattern: str = ""
    phase: Phase | None = None
    dtypes: tuple[str, ...] = ()
    device: str = ""

    def matches(self, view: OpView, patterns: frozenset[str] = frozenset()) -> bool:
        """Whether a node is meant; ``patterns`` names the matches it is part of."""
        node = view.node
        if self.op and not _op_matches(self.op, node.op):
            return False
        if self.module and not _module_matches(self.module, node.module):
            return False
        if self.module_class and not fnmatchcase(node.module_class, self.module_class):
            return False
        if self.pattern and not any(fnmatchcase(name, self.pattern) for name in patterns):
            return False
        if self.phase is not None and view.phase != self.phase:
            return False
        meta = _main_tensor(view)
        if self.dtypes and (meta is None or str(meta.dtype).removeprefix("torch.") not in self.dtypes):
            return False
        return not (self.device and (meta is None or meta.device.type != self.device))


def _op_matches(pattern: str, op: str) -> bool:
    return fnmatchcase(op, pattern) or fnmatchcase(op.rsplit(".", 1)[0], pattern)


def _module_matches(pattern: str, module: str) -> bool:
    return fnmatchcase(module, pattern) or fnmatchcase(module, pattern + ".*")


def _main_tensor(view: OpView) -> TensorMeta | None:
    tensors = view.output_tensors or view.input_tensors
    return tensors[0] if tensors else None


@dataclass(frozen=True, slots=True)
class Preference:
    """One rule.

    Attributes:
        match: which nodes.
        kind: ``require`` (only this backend), ``forbid`` (never this backend), ``prefer`` (multiply its cost).
        backend: name of the backend.
        factor: for ``prefer``, what this backend's op costs are multiplied by; below 1 makes it more likely.
        origin: where the rule was written, ``prefs.yaml:7``.
    """

    match: NodeMatch
    kind: Literal["prefer", "require", "forbid"]
    backend: str
    factor: float = 0.8
    origin: str = ""
