"""Discontinuities: what a step decides by comparing values is decided once, on one set of bits.

Place: a pass of ``passes.joint_passes``, before a joint graph is split into forward and backward, whatever decides
afterwards what else is saved.
Input: a joint graph. Output: the same graph; nodes are marked that the backward must not compute again.
Forward and backward are placed separately, and backends round differently. A maximum that the forward returned equals
none of the elements that another backend computes again, so the mask ``self == result`` of its derivative is empty, and
what is divided by its count is not a number. The same holds for every value at which a computation jumps.

Which ops count is read off the traced graph, which holds torch's derivative formulas written out
(``derivatives.yaml``):

- *Decisions*: ops that make integers or booleans of floating values (comparisons, ``argmax``, indices of ``topk``,
  masks of dropout). A decision of the forward is not repeated.
- A decision that only a derivative makes (``evenly_distribute_backward``, ``scale_grad_by_count``, ``maximum``,
  ``norm`` of infinite order): the forward's values that it compares are not computed again. The split saves these or
  the mask, whichever is smaller.
- *Steps*: floating results that jump (``round``, ``floor``, ``sign``), where the forward uses them.
- Kernels of derivatives that compare within (``_KERNELS_THAT_COMPARE``): what they read of the forward.

Values that every backend computes alike (``_EXACT``) may be compared and computed again: elements that are moved or
selected, starting at inputs of the graph.
Invariants: a user's own checkpointing decides first, but for ``topk``, ``argmax`` and their like, which have few
results: a router inside a checkpoint chooses once. Only marks are written.
Non-goals: kinks. Where a derivative jumps but the function does not (``relu``, ``hardtanh``), rounding that takes an
element to the other side changes the derivative within what eager's own rounding does.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from mixbackend.contracts import op_class_of
from mixbackend.contracts.describe_op import operator_name
from mixbackend.contracts.torch_compat import RECOMPUTATION_POLICY, is_tangent

_STEPS = frozenset("ceil floor frac fmod floor_divide heaviside remainder round sgn sign trunc".split())
_KERNELS_THAT_COMPARE = frozenset("_cdist_backward _pdist_backward _segment_reduce_backward".split())
"""Derivatives that are one operator each and look in it for the elements that equal the forward's result."""
_EXACT = frozenset("abs amax amin full max maximum min minimum neg ones relu scalar_tensor where zeros".split())
"""Beside views, copies and gathers: they return elements of their inputs, these with another sign, or one number."""
_MOVING = frozenset({"view", "copy", "gather"})
_CONVERTING = frozenset({"_to_copy"})


def applies(joint: torch.fx.GraphModule) -> bool:
    """Whether something jumps or decides."""
    return any(node.op == "call_function" and _may_jump(node) for node in joint.graph.nodes)


def save_discontinuities(joint: torch.fx.GraphModule, forward_outputs: int) -> int:
    """Mark what the backward must not compute again; returns how many nodes that are.

    Args:
        joint: forward and backward as one graph.
        forward_outputs: how many of its outputs the forward returns.
    """
    found = dict.fromkeys(_Joint(joint.graph, forward_outputs).to_save())
    for node in found:
        if _chooses(node):
            _save_choice(node)
        else:
            node.meta.setdefault(RECOMPUTATION_POLICY, CheckpointPolicy.MUST_SAVE)
    return len(found)


def _may_jump(node: torch.fx.Node) -> bool:
    return _decides(node) or _name(node) in _STEPS or _name(node) in _KERNELS_THAT_COMPARE


def _chooses(node: torch.fx.Node) -> bool:
    """Whether an op returns places of values: what routes by them must route alike in forward and backward."""
    integers = [value for value in _tensors(node) if not _is_floating(value) and value.dtype is not torch.bool]
    return _class(node) in ("sort", "reduction") and bool(integers)


def _save_choice(node: torch.fx.Node) -> None:
    """Save an op's results inside a checkpoint as well, unless the user says of this very op that it is repeated."""
    for part in (node, *(user for user in node.users if user.target is operator.getitem)):
        if part.meta.get(RECOMPUTATION_POLICY) is not CheckpointPolicy.MUST_RECOMPUTE:
            part.meta[RECOMPUTATION_POLICY] = CheckpointPolicy.MUST_SAVE


@dataclass(frozen=True)
class _Joint:
    """A joint graph, and which of its nodes belong where."""

    graph: torch.fx.Graph
    forward_outputs: int

    def to_save(self) -> Iterator[torch.fx.Node]:
        """Nodes of the forward that must not be computed again; some several times."""
        for node in self.graph.nodes:
            if node.op != "call_function" or node in self._exact:
                continue
            if node in self._gradients:
                yield from self._compared(node) if _name(node) in _KERNELS_THAT_COMPARE else ()
            elif _decides(node):
                yield from (node,) if node in self._forward else self._compared(node)
            elif _name(node) in _STEPS and node in self._forward:
                yield node

    def _compared(self, node: torch.fx.Node) -> Iterator[torch.fx.Node]:
        """Values of the forward from which a derivative computes the floating inputs of a node."""
        seen: set[torch.fx.Node] = set()
        waiting = list(_floating_inputs(node))
        while waiting:
            value = waiting.pop()
            if value in seen or value in self._gradients or value in self._exact:
                continue
            seen.add(value)
            if value in self._forward and _class(value) != "view":
                yield value
            else:
                waiting.extend(_floating_inputs(value))

    @cached_property
    def _forward(self) -> frozenset[torch.fx.Node]:
        """What the outputs of the forward are computed from."""
        (output,) = self.graph.find_nodes(op="output")
        returned = _flat(output.args[0])[: self.forward_outputs]
        found = {node for node in returned if isinstance(node, torch.fx.Node)}
        for node in reversed(self.graph.nodes):
            if node in found:
                found.update(node.all_input_nodes)
        return frozenset(found)

    @cached_property
    def _gradients(self) -> frozenset[torch.fx.Node]:
        """Incoming gradients and what they go into."""
        found: set[torch.fx.Node] = set()
        for node in self.graph.nodes:
            if (node.op == "placeholder" and is_tangent(node)) or not found.isdisjoint(node.all_input_nodes):
                found.add(node)
        return frozenset(found)

    @cached_property
    def _exact(self) -> frozenset[torch.fx.Node]:
        """Values that have the same bits whichever backend computes them."""
        found: set[torch.fx.Node] = set()
        for node in self.graph.nodes:
            if node.op in ("placeholder", "get_attr") or (_is_exact(node) and found.issuperset(node.all_input_nodes)):
                found.add(node)
        return frozenset(found)


def _is_exact(node: torch.fx.Node) -> bool:
    """Whether every backend computes an op alike, from the same inputs."""
    if node.op != "call_function":
        return False
    name, op_class = _name(node), _class(node)
    if name in _EXACT or (op_class in _MOVING and name not in _CONVERTING):
        return True
    return op_class in ("pointwise", "factory") and not any(map(_is_floating, _tensors(node)))


def _decides(node: torch.fx.Node) -> bool:
    """Whether an op makes integers or booleans of floating values."""
    if _class(node) == "view":
        return False
    return not all(map(_is_floating, _tensors(node))) and next(_floating_inputs(node), None) is not None


def _floating_inputs(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    return (source for source in node.all_input_nodes if any(map(_is_floating, _tensors(source))))


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """What a node computes, as fake tensors."""
    return [value for value in _flat(node.meta.get("val")) if isinstance(value, torch.Tensor)]


def _is_floating(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _class(node: torch.fx.Node) -> str:
    return op_class_of(operator_name(node.target))


def _name(node: torch.fx.Node) -> str:
    """``aten.round.decimals`` -> ``round``."""
    return operator_name(node.target).split(".")[1] if node.target is not operator.getitem else "getitem"


def _flat(value: Any) -> list[Any]:
    return [item for part in value for item in _flat(part)] if isinstance(value, (tuple, list)) else [value]
