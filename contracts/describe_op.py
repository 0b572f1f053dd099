"""Describe one fx node as a value, without its place in the user's model.

Place: below ``graph.describe`` (whole captured graphs) and ``region_reader`` (regions read back).
Input: an fx node with fake values in ``meta["val"]``. Output: metas, arguments and tags as ``OpNode`` carries them.
Invariants: reads only; adds no guard; equal nodes give equal values. Lists of windows and sizes have a number for each
dimension, however short they were written.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.bodies import bodies_of
from mixbackend.contracts.ops import Argument, NodeRef, Opaque, OpNode, OpTag, ValueMeta
from mixbackend.contracts.sizes import SymbolicSize
from mixbackend.contracts.tensors import TensorMeta
from mixbackend.contracts.torch_compat import (
    is_higher_order,
    is_mutating,
    is_operator,
    returns_nothing,
    schema_arguments,
    symbolic_bounds,
    symbolic_expression,
    symbolic_hint,
)

_COLLECTIVE_NAMESPACES = ("_c10d_functional", "c10d_functional", "c10d", "_dtensor")
_VIEW_BY_NAME = (
    *("aten.reshape.default", "aten._unsafe_view.default", "aten._reshape_alias.default"),
    *("aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default", "aten.unsafe_chunk.default"),
)
_STRIDE_SENSITIVE = ("aten.as_strided.default", "aten.as_strided_scatter.default", "aten.as_strided_.default")
_UNINITIALIZED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")

_WINDOW_LISTS = ("stride", "padding", "dilation", "output_padding")
_CONVOLUTIONS = (
    "aten.convolution.default",
    "aten._convolution.default",
    "aten.convolution_overrideable.default",
    "aten.convolution_backward.default",
    "aten.convolution_backward_overrideable.default",
)

_OPERATOR_NAMES = (
    "add sub mul floordiv truediv mod pow neg pos abs and_ or_ xor not_ eq ne lt le gt ge lshift rshift index"
)
_SYM_NAMES = "sym_max sym_min sym_int sym_float sym_not sym_ite sym_sqrt sym_sum"
_MATH_NAMES = "ceil floor trunc sqrt"
SYMBOLIC_OPERATORS: dict[str, Callable[..., Any]] = {
    **{f"symbolic.{name}": getattr(operator, name) for name in _OPERATOR_NAMES.split()},
    **{f"symbolic.{name}": getattr(torch, name) for name in _SYM_NAMES.split() if hasattr(torch, name)},
    **{f"symbolic.{name}": getattr(math, name) for name in _MATH_NAMES.split()},
    "getitem": operator.getitem,
}
"""Operators on numbers, by the names that ``OpNode.op`` uses."""


def describe_op(node: torch.fx.Node, module: str = "", module_class: str = "", source: str = "") -> OpNode:
    """One ``call_function`` node as a value."""
    value = node.meta.get("val")
    return OpNode(
        name=node.name,
        op=operator_name(node.target),
        arguments=tuple(_arguments(node)),
        outputs=tuple(value_meta(item) for item in as_tuple(value)),
        module=module,
        module_class=module_class,
        source=source,
        tags=_tags(node, value),
        bodies=bodies_of(node, describe_op, value_meta) if is_higher_order(node.target) else (),
    )


def value_meta(value: Any) -> ValueMeta:
    """Meta of one fake value; what is neither tensor nor number becomes ``None``."""
    if isinstance(value, torch.Tensor):
        shape = tuple(size_of(size) for size in value.shape)
        strided = value.layout is torch.strided
        stride = tuple(size_of(step) for step in value.stride()) if strided else (0,) * len(shape)
        return TensorMeta(shape, stride, value.dtype, value.device)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _symbolic_number(value)
    return value if isinstance(value, (int, float, bool)) else None


def size_of(size: int | torch.SymInt) -> int | SymbolicSize:
    """A size as a value; a symbolic size becomes a number if its expression is one."""
    if isinstance(size, int):
        return size
    number = _symbolic_number(size)
    if isinstance(number, SymbolicSize):
        # Whatever it is made of, a tensor's size is not negative; a number made of sizes may be.
        return replace(number, lower=max(number.lower, 0))
    return int(number)  # type: ignore[arg-type]


def _symbolic_number(value: Any) -> SymbolicSize | int | float | bool:
    expression = symbolic_expression(value)
    if getattr(expression, "is_number", False):
        return value.node.pytype(expression)
    hint = symbolic_hint(value)
    if not isinstance(value, torch.SymInt):
        return SymbolicSize(expression, None if hint is None else int(hint))
    lower, upper = symbolic_bounds(value)
    return SymbolicSize(expression, None if hint is None else int(hint), lower, upper)


def operator_name(target: Any) -> str:
    """Full name of an fx target: ``aten.add.Tensor``, ``getitem``, ``symbolic.mul``, ``higher_order.cond``."""
    if is_operator(target):
        return str(target)
    if target is operator.getitem:
        return "getitem"
    if is_higher_order(target):
        return f"higher_order.{target.name()}"
    return f"symbolic.{getattr(target, '__name__', target)}"


def _arguments(node: torch.fx.Node) -> Iterable[tuple[str, Argument]]:
    if node.target is operator.getitem:
        return (("self", _argument(node.args[0])), ("index", _argument(node.args[1])))
    if not is_operator(node.target):
        positional = [(f"arg{index}", _argument(item)) for index, item in enumerate(node.args)]
        return positional + [(name, _argument(item)) for name, item in node.kwargs.items()]
    named: dict[str, Argument] = {}
    for index, argument in enumerate(schema_arguments(node.target)):
        if index < len(node.args) and not argument.keyword_only:
            value = node.args[index]
        else:
            value = node.kwargs.get(argument.name, argument.default)
        length = argument.length or _dimensions(node, argument.name)
        named[argument.name] = _whole(argument.name, _argument(value), length, named)
    return named.items()


def _dimensions(node: torch.fx.Node, name: str) -> int | None:
    """How many numbers a convolution means by a list of one, which its schema does not say."""
    if name not in _WINDOW_LISTS or operator_name(node.target) not in _CONVOLUTIONS:
        return None
    place = [argument.name for argument in schema_arguments(node.target)].index("weight")
    weight = node.args[place] if place < len(node.args) else node.kwargs.get("weight")
    return len(weight.meta["val"].shape) - 2 if isinstance(weight, torch.fx.Node) else None


def _whole(name: str, value: Argument, length: int | None, before: Mapping[str, Argument]) -> Argument:
    """A list with a number for each dimension.

    Torch takes one number for all, and windows that move by no number move by their size: code that reads an op's
    arguments need not know that.
    """
    if length is None or not isinstance(value, tuple):
        return value
    if name == "stride" and not value:
        return before.get("kernel_size", value)
    return value * length if len(value) == 1 else value


def _argument(value: Any) -> Argument:
    if isinstance(value, torch.fx.Node):
        return Opaque(str(value.target)) if is_subgraph(value) else NodeRef(value.name)
    if isinstance(value, (tuple, list)):
        return tuple(_argument(item) for item in value)
    if isinstance(value, torch.SymInt):
        return size_of(value)
    known = (int, float, bool, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
    if value is None or isinstance(value, known):
        return value
    return Opaque(type(value).__name__)


def is_subgraph(node: torch.fx.Node) -> bool:
    """Whether a node is a graph that an operator of higher order takes."""
    return node.op == "get_attr" and not isinstance(node.meta.get("val"), torch.Tensor)


def _tags(node: torch.fx.Node, value: Any) -> frozenset[OpTag]:
    target: Any = node.target
    tags: set[OpTag] = set()
    if isinstance(value, (tuple, list)):
        tags.add(OpTag.MULTI_OUTPUT)
    if is_higher_order(target):
        tags.add(OpTag.HIGHER_ORDER)
    if not is_operator(target):
        return frozenset(tags)
    name = str(target)
    # An operator that yields a number (item) is computed by the stitched code like other symbolic arithmetic.
    if value is not None and not any(isinstance(item, torch.Tensor) for item in as_tuple(value)):
        return frozenset(tags)
    facts = (
        (OpTag.RANDOM, torch.Tag.nondeterministic_seeded in target.tags and not _draws_nothing(node, name)),
        (OpTag.MUTATES, is_mutating(target)),
        (OpTag.COLLECTIVE, target.namespace in _COLLECTIVE_NAMESPACES),
        (OpTag.VIEW, target.is_view or name in _VIEW_BY_NAME),
        (OpTag.STRIDE_SENSITIVE, name in _STRIDE_SENSITIVE),
        (OpTag.DATA_DEPENDENT, torch.Tag.dynamic_output_shape in target.tags and _has_unknown_size(value)),
        (OpTag.UNINITIALIZED, name.split(".")[1] in _UNINITIALIZED),
        (OpTag.EFFECT, returns_nothing(target) or _unusual_layout(value)),
    )
    return frozenset(tags | {tag for tag, holds in facts if holds})


def _draws_nothing(node: torch.fx.Node, name: str) -> bool:
    """Attention draws random numbers only for dropout: kernels for the CPU have none, others where it is not zero."""
    if not name.startswith("aten._scaled_dot_product_"):
        return False
    return name.startswith("aten._scaled_dot_product_flash_attention_for_cpu") or any(
        argument == "dropout_p" and value in (0, 0.0) for argument, value in _arguments(node)
    )


def _has_unknown_size(value: Any) -> bool:
    """Whether a size depends on values (indexing with integers carries torch's tag too, but its shape is known)."""
    sizes = [size for item in as_tuple(value) if isinstance(item, torch.Tensor) for size in item.shape]
    return any(isinstance(size, torch.SymInt) and symbolic_hint(size) is None for size in sizes)


def _unusual_layout(value: Any) -> bool:
    """Sparse and nested tensors: only eager knows them."""
    return any(isinstance(item, torch.Tensor) and item.layout is not torch.strided for item in as_tuple(value))


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Several outputs as they are, one output as a tuple of one."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
