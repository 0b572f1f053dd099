"""The canonical text of a region: its cache key, its repro, and what crosses to other processes.

Place: written when a region is cut, read by ``region_reader`` (re-exported here).
Input: the region's fx graph and boundary. Output: text that two regions share exactly if they do the same on the same
metas: values and symbols are numbered in order of first appearance, arguments carry schema names and all defaults.
Form, one statement per line::

    mixbackend-region 1 inference
    %0 = input(activation, tensor(float32, [s0, 4], [4, 1], "cpu"))
    %1 = aten.mul.Tensor(self=%0, other=2.5) -> tensor(float32, [s0, 4], [4, 1], "cpu")
    return(%1, tensor(float32, [s0, 4], [4, 1], "cpu"), alias=none, exact=true)
    symbol(s0, size, 2, none)
    # hint s0 6

Invariants: lines that begin with ``#`` are not part of the key. Nothing is evaluated or unpickled on reading.
Non-goals: subgraphs of higher-order ops, symbolic floats, sparse and nested tensors, large lifted tensors: such regions
have no text and are neither shared nor stored.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.describe_op import SYMBOLIC_OPERATORS, operator_name, value_meta
from mixbackend.contracts.errors import RegionTextError
from mixbackend.contracts.op_levels import OpLevel
from mixbackend.contracts.ops import InputRole, Phase
from mixbackend.contracts.region import RegionInput, RegionOutput
from mixbackend.contracts.region_grammar import (
    DETERMINISTIC,
    HEADER,
    Reference,
    SymbolNames,
    region_key,
    write_tensor,
    write_value,
)
from mixbackend.contracts.region_reader import read_graph_text, read_region_text
from mixbackend.contracts.tensors import TensorMeta
from mixbackend.contracts.torch_compat import (
    is_fake,
    is_operator,
    schema_arguments,
    shape_env_of,
    symbol_facts,
    symbolic_expression,
)

__all__ = [
    "CONSTANT_LIMIT_BYTES",
    "read_graph_text",
    "read_region_text",
    "region_key",
    "write_graph_text",
    "write_region_text",
]

CONSTANT_LIMIT_BYTES = 4096
"""Lifted tensors up to this size are written by value."""


def write_region_text(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[RegionInput],
    outputs: Sequence[RegionOutput],
    phase: Phase,
    matches: Iterable[tuple[str, tuple[str, ...]]] = (),
    deterministic: bool = False,
    level: OpLevel = "aten",
) -> str:
    """Canonical text of a region.

    Args:
        graph_module: the region's graph, as ``contracts.region`` describes it.
        inputs, outputs: its boundary, in the order of placeholders and results.
        phase: inference, forward or backward.
        matches: patterns that the owner was given the region for, as in ``Region.matches``.
        deterministic, level: as in ``Region``; said in the first line.

    Raises:
        RegionTextError: something in it has no text form; names the node.
    """
    writer = _Writer(graph_module, {item.name: item.role for item in inputs})
    lowered = "" if level == "aten" else f" {level}"
    lines = [f"{HEADER} {phase}{lowered}{DETERMINISTIC if deterministic else ''}", *writer.statements()]
    lines += [writer.output(item) for item in outputs]
    lines += [writer.match(pattern, names) for pattern, names in matches]
    return "\n".join(lines + writer.symbols()) + "\n"


def write_graph_text(graph_module: torch.fx.GraphModule, roles: Mapping[str, InputRole], phase: Phase) -> str:
    """Text of a graph as it was captured: all its nodes, and where in their storage values begin; not what it returns.

    Args:
        graph_module: the graph.
        roles: of its placeholders, by name; others are activations.
        phase: inference, forward or backward.

    Raises:
        RegionTextError: something in it has no text form; names the node.
    """
    writer = _Writer(graph_module, roles)
    lines = [f"{HEADER} {phase}", *writer.statements(), *writer.offsets()]
    return "\n".join(lines + writer.symbols()) + "\n"


class _Writer:
    """Numbers values and symbols while it walks one graph."""

    def __init__(self, graph_module: torch.fx.GraphModule, roles: Mapping[str, InputRole]) -> None:
        self._module = graph_module
        self._roles = roles
        self._numbers: dict[str, int] = {}
        self._symbols = SymbolNames()
        self._shape_env: Any = None

    def statements(self) -> list[str]:
        return [self._statement(node) for node in self._module.graph.nodes if node.op != "output"]

    def offsets(self) -> list[str]:
        """Lines of the nodes of which a tensor does not begin where its storage does."""
        begins = ((node.name, _begin(node.meta.get("val"))) for node in self._module.graph.nodes)
        return [f"offset(%{self._numbers[name]}, {self._value(begin)})" for name, begin in begins if _is_apart(begin)]

    def _statement(self, node: torch.fx.Node) -> str:
        try:
            text = self._right_side(node)
        except RegionTextError as error:
            raise RegionTextError(error.what, where=f"node %{node.name} = {node.target}") from error
        self._numbers[node.name] = len(self._numbers)
        return f"%{self._numbers[node.name]} = {text}"

    def output(self, item: RegionOutput) -> str:
        meta = write_value(item.meta, self._symbols)
        alias, exact = write_value((item.alias_of, item.exact_stride), self._symbols)[1:-1].split(", ")
        return f"return(%{self._numbers[item.name]}, {meta}, alias={alias}, exact={exact})"

    def match(self, pattern: str, names: tuple[str, ...]) -> str:
        return f"match({write_value((pattern, *self._references(names)), self._symbols)[1:-1]})"

    def symbols(self) -> list[str]:
        declarations, hints = [], []
        for symbol, name in self._symbols.names.items():
            if self._shape_env is None:
                raise RegionTextError(f"symbol {symbol} belongs to no captured graph")
            facts = symbol_facts(self._shape_env, symbol)
            lower, upper = (write_value(bound, self._symbols) for bound in (facts.lower, facts.upper))
            declarations.append(f"symbol({name}, {facts.kind}, {lower}, {upper})")
            if facts.hint is not None:
                hints.append(f"# hint {name} {facts.hint}")
        return declarations + hints

    def _references(self, names: Iterable[str]) -> tuple[Reference, ...]:
        return tuple(Reference(self._numbers[name]) for name in names)

    def _right_side(self, node: torch.fx.Node) -> str:
        if node.op == "placeholder":
            role = self._roles.get(node.name, InputRole.ACTIVATION)
            return f"input({role.value}, {self._meta(node)})"
        if node.op == "get_attr":
            return self._constant(node)
        if node.op != "call_function":
            raise RegionTextError(f"nodes of kind {node.op} have no text form")
        arguments = ", ".join(f"{name}={self._argument(value)}" for name, value in self._arguments(node))
        return f"{operator_name(node.target)}({arguments}) -> {self._meta(node)}"

    def _arguments(self, node: torch.fx.Node) -> list[tuple[str, Any]]:
        if not is_operator(node.target):
            name = operator_name(node.target)
            if SYMBOLIC_OPERATORS.get(name) is not node.target or node.kwargs:
                raise RegionTextError(f"operator {name} has no text form")
            return [(f"arg{index}", value) for index, value in enumerate(node.args)]
        named: list[tuple[str, Any]] = []
        for index, argument in enumerate(schema_arguments(node.target)):
            given = index < len(node.args) and not argument.keyword_only
            value = node.args[index] if given else node.kwargs.get(argument.name, argument.default)
            named.append((argument.name, value))
        return named

    def _argument(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return f"%{self._numbers[value.name]}"
        if isinstance(value, (tuple, list)):
            return "[" + ", ".join(self._argument(item) for item in value) + "]"
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise RegionTextError(f"the symbolic number {value} is not computed by a node")
        return write_value(value, self._symbols)

    def _meta(self, node: torch.fx.Node) -> str:
        if "val" not in node.meta:
            raise RegionTextError('the node has no meta["val"]')
        return self._value(node.meta["val"])

    def _value(self, value: Any) -> str:
        if isinstance(value, (tuple, list)):
            return "[" + ", ".join(self._value(item) for item in value) + "]"
        self._shape_env = self._shape_env or shape_env_of(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.SymInt):
            return self._symbols.expression(symbolic_expression(value))
        if value is None or isinstance(value, (bool, int, float)):
            return write_value(value, self._symbols)
        raise RegionTextError(f"a value of type {type(value).__qualname__} has no text form")

    def _tensor(self, value: torch.Tensor) -> str:
        _check_plain(value)
        shape, stride = (f"[{', '.join(map(self._value, sizes))}]" for sizes in (value.shape, value.stride()))
        return write_tensor(value.dtype, shape, stride, value.device)

    def _constant(self, node: torch.fx.Node) -> str:
        value: Any = self._module
        for part in str(node.target).split("."):
            value = getattr(value, part, None)
        if not isinstance(value, torch.Tensor):
            raise RegionTextError(f"attribute {node.target} is a {type(value).__qualname__}, not a tensor")
        _check_plain(value)
        meta = value_meta(value)
        if is_fake(value) or not isinstance(meta, TensorMeta) or meta.dynamic:
            raise RegionTextError(f"lifted tensor {node.target} has no data")
        if meta.bytes() > CONSTANT_LIMIT_BYTES:
            raise RegionTextError(f"lifted tensor {node.target} has {meta.bytes()} bytes: too large to be written")
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f'constant({write_value(meta, self._symbols)}, "{base64.b64encode(data).decode()}")'


def _begin(value: Any) -> Any:
    """Where the tensors of a value begin, in its own structure; 0 for what is no tensor."""
    if isinstance(value, (tuple, list)):
        return [_begin(item) for item in value]
    return value.storage_offset() if isinstance(value, torch.Tensor) else 0


def _is_apart(begin: Any) -> bool:
    return any(map(_is_apart, begin)) if isinstance(begin, list) else str(begin) != "0"


def _check_plain(value: torch.Tensor) -> None:
    if value.layout is not torch.strided:
        raise RegionTextError(f"a tensor of layout {value.layout} has no text form")
    if value.is_conj() or value.is_neg():
        raise RegionTextError("a lazily conjugated or negated tensor has no text form")
    if value.is_quantized or value.is_nested:
        raise RegionTextError("a quantized or nested tensor has no text form")
