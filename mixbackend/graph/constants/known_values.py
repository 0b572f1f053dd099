"""Known values: numbers that the code computes from constants alone are computed when a graph is compiled.

Place: a pass of ``passes.CAPTURED`` and of joint graphs, before ``lifted_scalars``, which makes operands of what this
pass writes. Input and output: the fx graph, changed in place.
``torch.sqrt(torch.tensor(64.0) * 3)`` depends on no input. On a GPU it is a chain of ops on the processor, each a
region of its own, that keeps what is around it out of one CUDA graph. Of the chain one ``full`` is left.
The algorithm: what is made of lifted tensors and factories on the processor, by operators that draw nothing, write
nothing and have no other effect, is known. Where a known value of one element is read by something that is not, the
very operators are run on its sources. A copy of such a value to another device is made there.
Invariants: the number that is written gives eager's bits, or the chain stays; what a graph returns is made as traced.
Before the graph is split: a backward reads no number that its forward would have to save.
Non-goals: values of several elements, which ``split`` has computed once in inference; operators of an accelerator
(only its kernels know their results to the bit).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import OpTag
from mixbackend.contracts.describe_op import describe_op
from mixbackend.contracts.torch_compat import is_fake, is_operator, run_eagerly
from mixbackend.graph.aliases import sharing_with_outputs

aten = torch.ops.aten
Node = torch.fx.Node

LARGEST_ELEMENTS = 1024
"""A value of more elements is not computed on the way to a number."""

LIFTED = aten.lift_fresh_copy.default
LIKES = (aten.detach.default, aten.alias.default)
"""Operators that return the value that they take."""

_COPY = aten._to_copy.default
_WRITTEN_AS_NUMBERS = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    }
)
_WRITING = frozenset({OpTag.MUTATES, OpTag.EFFECT, OpTag.HIGHER_ORDER})
_UNFIT = _WRITING | {OpTag.RANDOM, OpTag.COLLECTIVE, OpTag.DATA_DEPENDENT, OpTag.UNINITIALIZED, OpTag.MULTI_OUTPUT}


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether a number is computed from constants."""
    return bool(_borders(graph_module, _known_nodes(graph_module)))


def write_known_values(graph_module: torch.fx.GraphModule) -> int:
    """Let numbers stand for what is computed from constants.

    Returns:
        How many values were written.
    """
    known = _known_nodes(graph_module)
    values: dict[Node, torch.Tensor | None] = {}
    written = 0
    for node in _borders(graph_module, known):
        number = _number_of(_value(graph_module, node, values), node)
        if number is None:
            continue
        stated = node.meta["val"]
        node.target = aten.full.default
        node.args = (list(stated.shape), number)
        node.kwargs = {"dtype": stated.dtype, "device": stated.device, "pin_memory": False}
        written += 1
    for node in reversed(known):
        held = node.all_input_nodes if node.target is LIFTED else []
        for unused in (node, *held):
            if not unused.users:
                graph_module.graph.erase_node(unused)
    return written


def held_tensor(graph_module: torch.fx.GraphModule, node: object) -> torch.Tensor | None:
    """The tensor that a graph holds by a name; ``None`` where there is none, or only its form is known."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    try:
        value: Any = operator.attrgetter(str(node.target))(graph_module)
    except AttributeError:
        return None
    return value if isinstance(value, torch.Tensor) and not is_fake(value) else None


def _known_nodes(graph_module: torch.fx.GraphModule) -> list[Node]:
    """What depends on constants alone, in graph order; memory that something writes into is left out."""
    made = _made_of_constants(graph_module, {})
    roots = _roots(made)
    written = {roots[node] for node in made if any(_writes(user) for user in node.users)}
    return _made_of_constants(graph_module, roots, frozenset(written)) if written else made


def _made_of_constants(
    graph_module: torch.fx.GraphModule, roots: Mapping[Node, Node], without: frozenset[Node] = frozenset()
) -> list[Node]:
    known: dict[Node, None] = {}
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and roots.get(node, node) not in without and _is_known(graph_module, node, known):
            known[node] = None
    return list(known)


def _is_known(graph_module: torch.fx.GraphModule, node: Node, known: Mapping[Node, None]) -> bool:
    stated = node.meta.get("val")
    if not is_operator(node.target) or not isinstance(stated, torch.Tensor) or stated.layout is not torch.strided:
        return False
    if node.target is LIFTED:
        return held_tensor(graph_module, node.args[0]) is not None and _is_small(stated)
    if any(source not in known or not _is_on_processor(source) for source in node.all_input_nodes):
        return False
    if not _is_on_processor(node) and not (node.target is _COPY and node.all_input_nodes):
        return False
    return _is_small(stated) and str(node.target).startswith("aten.") and not describe_op(node).tags & _UNFIT


def _is_small(stated: torch.Tensor) -> bool:
    sizes = (*stated.shape, *stated.stride())
    return all(isinstance(size, int) for size in sizes) and stated.numel() <= LARGEST_ELEMENTS


def _is_on_processor(node: Node) -> bool:
    return bool(node.meta["val"].device.type == "cpu")


def _roots(made: list[Node]) -> dict[Node, Node]:
    """For each value, the value that owns its memory."""
    roots: dict[Node, Node] = {}
    for node in made:
        views = bool(node.all_input_nodes) and OpTag.VIEW in describe_op(node).tags
        roots[node] = roots.get(node.all_input_nodes[0], node) if views else node
    return roots


def _writes(user: Node) -> bool:
    return user.op == "call_function" and bool(describe_op(user).tags & _WRITING)


def _borders(graph_module: torch.fx.GraphModule, known: list[Node]) -> list[Node]:
    """Computed values of one element that something reads which is not known."""
    members = set(known)
    found = [node for node in known if _is_computed(node) and not members.issuperset(node.users)]
    found = [node for node in found if node.meta["val"].numel() == 1 and node.meta["val"].is_contiguous()]
    if not found:
        return found
    shared = sharing_with_outputs(graph_module.graph)
    return [node for node in found if node not in shared]


def origin_of(node: Node) -> Node:
    """What made a value, behind operators that hand it on."""
    while node.target in LIKES:
        node = node.all_input_nodes[0]
    return node


def _is_computed(node: Node) -> bool:
    """Whether it is more than a constant as the code states it, or a copy of such."""
    node = origin_of(node)
    return node.target is not LIFTED and bool(node.all_input_nodes)


def _value(
    graph_module: torch.fx.GraphModule, node: Node, values: dict[Node, torch.Tensor | None]
) -> torch.Tensor | None:
    """What eager computes for a known node, on the processor; ``None`` where it raises or gives another form."""
    waiting = [node]
    while waiting:
        last = waiting[-1]
        missing = [] if last.target is LIFTED else [item for item in last.all_input_nodes if item not in values]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if last not in values:
            values[last] = _run(graph_module, last, values)
    return values[node]


def _run(
    graph_module: torch.fx.GraphModule, node: Node, values: Mapping[Node, torch.Tensor | None]
) -> torch.Tensor | None:
    if node.target is LIFTED:
        return held_tensor(graph_module, node.args[0])
    if any(values[source] is None for source in node.all_input_nodes):
        return None
    arguments, keywords = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)  # type: ignore[misc]
    if not _is_on_processor(node):
        keywords = {**keywords, "device": torch.device("cpu")}
    try:
        result = run_eagerly(node.target, arguments, keywords)
    except Exception:
        # What eager refuses, it refuses when the graph runs.
        return None
    stated = node.meta["val"]
    alike = isinstance(result, torch.Tensor) and (result.shape, result.dtype) == (stated.shape, stated.dtype)
    return result if alike else None


def _number_of(value: torch.Tensor | None, node: Node) -> float | None:
    """The number by which ``full`` makes a value, to the bit."""
    if value is None or value.dtype not in _WRITTEN_AS_NUMBERS:
        return None
    number = value.item()
    made = run_eagerly(torch.full, (value.shape, number), {"dtype": value.dtype})
    return number if _bits(made) == _bits(value) else None


def _bits(value: torch.Tensor) -> list[int]:
    return value.reshape(1).view(torch.uint8).tolist()
