"""Read a region back from its canonical text.

Place: in subprocesses that measure or certify a region, in repros, and in tests; the inverse of ``region_text``.
Input: text. Output: a ``Region`` with a graph that runs on real tensors and carries fake values in ``meta["val"]``.
Invariants: a grammar reads the text, nothing in it is evaluated; operators come from torch's registry only.
Non-goals: module paths and source lines, which the text does not have.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import sympy
import torch
import torch.fx

from mixbackend.contracts.describe_op import SYMBOLIC_OPERATORS, describe_op, value_meta
from mixbackend.contracts.errors import RegionTextError
from mixbackend.contracts.graph import GraphInput, OpGraph
from mixbackend.contracts.op_levels import LEVELS, OpLevel
from mixbackend.contracts.ops import InputRole, Phase
from mixbackend.contracts.region import Region, RegionInput, RegionOutput
from mixbackend.contracts.region_grammar import (
    DETERMINISTIC,
    HEADER,
    Call,
    Parser,
    Reference,
    Word,
    read_device,
    read_dtype,
    read_expression,
    read_torch_value,
    region_key,
)
from mixbackend.contracts.sizes import hint_of
from mixbackend.contracts.tensors import TensorMeta
from mixbackend.contracts.torch_compat import (
    SymbolFacts,
    declare_symbol,
    fake_tensor,
    fresh_fake_mode,
    graph_module_of,
    is_operator,
    operator_by_name,
    schema_arguments,
    symbolic_number,
)


def read_region_text(text: str, id: str = "region") -> Region:
    """Rebuild a region.

    Args:
        text: as ``write_region_text`` wrote it.
        id: name of the region in reports.

    Raises:
        RegionTextError: the text is malformed, or names an operator that is not registered here; with the line.
    """
    return _Reader(text).read(id)


def read_graph_text(text: str, names: Sequence[str]) -> tuple[torch.fx.GraphModule, Phase]:
    """Rebuild a captured graph; it returns nothing yet.

    Args:
        text: as ``write_graph_text`` wrote it.
        names: of its nodes, in their order.

    Returns:
        The graph, with fake values in ``meta["val"]`` of its nodes, and its phase.

    Raises:
        RegionTextError: as ``read_region_text``.
    """
    return _Reader(text, names).graph()


class _Reader:
    """Builds graph, boundary and views while it walks the lines."""

    def __init__(self, text: str, names: Sequence[str] = ()) -> None:
        self._text = text
        self._names = names
        self._graph = torch.fx.Graph()
        self._root = torch.nn.Module()
        self._mode = fresh_fake_mode()
        self._values: list[torch.fx.Node] = []
        self._symbols: dict[str, sympy.Symbol] = {}
        self._inputs: list[RegionInput] = []
        self._outputs: list[RegionOutput] = []
        self._matches: list[tuple[str, tuple[str, ...]]] = []

    def read(self, id: str) -> Region:
        return self._finish(id, *self._walk({"return": self._output, "match": self._match}))

    def graph(self) -> tuple[torch.fx.GraphModule, Phase]:
        phase, *_ = self._walk({"offset": self._offset})
        if len(self._names) != len(self._values):
            raise RegionTextError(f"{len(self._names)} names are given for {len(self._values)} values")
        self._graph.output(())
        return graph_module_of(self._root, self._graph), phase

    def _walk(self, handlers: Mapping[str, Callable[[Parser], None]]) -> tuple[Phase, OpLevel, bool]:
        lines = list(enumerate(self._text.splitlines(), start=1))
        header = _read_header(lines[0][1] if lines else "")
        # Symbols are declared at the end, in order of first appearance; metas need them from the first line on.
        self._declare(lines)
        for number, line in lines[1:]:
            if not line or line.startswith(("#", "symbol(")):
                continue
            parser = Parser(line, number)
            handlers.get(parser.peek(), self._statement)(parser)
            parser.end()
        return header

    def _new_name(self) -> str:
        place = len(self._values)
        return self._names[place] if place < len(self._names) else f"v{place}"

    def _finish(self, id: str, phase: Phase, level: OpLevel, deterministic: bool) -> Region:
        self._graph.output(tuple(self._named(item.name) for item in self._outputs))
        nodes = [node for node in self._graph.nodes if node.op == "call_function"]
        inputs = [GraphInput(item.name, item.meta, item.role) for item in self._inputs]
        inputs += [
            GraphInput(node.name, value_meta(node.meta["val"]), InputRole.CONSTANT)
            for node in self._graph.nodes
            if node.op == "get_attr"
        ]
        outputs = tuple(item.name for item in self._outputs)
        ops = tuple(map(describe_op, nodes))
        described = OpGraph(id, phase, tuple(inputs), ops, outputs, deterministic=deterministic)
        return Region(
            id=id,
            key=region_key(self._text),
            text=self._text,
            phase=phase,
            graph_module=graph_module_of(self._root, self._graph),
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            views=tuple(described.view(node.name) for node in described.placed_nodes),
            matches=tuple(self._matches),
            deterministic=deterministic,
            level=level,
        )

    def _named(self, name: str) -> torch.fx.Node:
        return self._values[int(name[1:])]

    # --- symbols -----------------------------------------------------------------------------------------------------

    def _declare(self, lines: list[tuple[int, str]]) -> None:
        hints = dict(_read_hint(Parser(line[1:], number)) for number, line in lines if line.startswith("# hint "))
        for number, line in lines:
            if not line.startswith("symbol("):
                continue
            parser = Parser(line, number)
            call = _call(parser.value(), "symbol", 4, parser)
            name, kind = (item.text if isinstance(item, Word) else "" for item in call.arguments[:2])
            lower, upper = call.arguments[2:]
            bounds_fit = all(bound is None or type(bound) is int for bound in (lower, upper))
            if not name or kind not in ("size", "integer", "unbacked") or not bounds_fit:
                raise parser.error("a symbol is symbol(name, size|integer|unbacked, lower, upper)")
            if name in self._symbols:
                raise parser.error(f"symbol {name} is declared twice")
            parser.end()
            facts = SymbolFacts(kind, lower, upper, hints.get(name))
            with parser_errors(parser):
                self._symbols[name] = declare_symbol(self._mode.shape_env, name, facts)

    # --- statements --------------------------------------------------------------------------------------------------

    def _statement(self, parser: Parser) -> None:
        reference = parser.value()
        if reference != Reference(len(self._values)):
            raise parser.error(f"expected the value %{len(self._values)}, found {reference!r}")
        parser.take("=")
        call = parser.value()
        if not isinstance(call, Call):
            raise parser.error(f"expected an operator call, found {call!r}")
        if call.name == "input":
            node = self._input(call, parser)
        elif call.name == "constant":
            node = self._constant(call, parser)
        else:
            node = self._operator(call, parser)
        self._values.append(node)

    def _input(self, call: Call, parser: Parser) -> torch.fx.Node:
        _call(call, "input", 2, parser)
        role, meta = call.arguments
        roles = {item.value: item for item in InputRole}
        if not isinstance(role, Word) or role.text not in roles:
            raise parser.error(f"unknown input role {role!r}")
        node = self._graph.placeholder(self._new_name())
        node.meta["val"] = self._value(meta, parser)
        self._inputs.append(RegionInput(node.name, value_meta(node.meta["val"]), roles[role.text]))
        return node

    def _constant(self, call: Call, parser: Parser) -> torch.fx.Node:
        _call(call, "constant", 2, parser)
        meta, data = call.arguments
        fake = self._value(meta, parser)
        described = value_meta(fake)
        if not isinstance(described, TensorMeta) or described.dynamic or not isinstance(data, str):
            raise parser.error("a constant has a tensor without symbols and its bytes")
        try:
            content = bytearray(base64.b64decode(data, validate=True))
        except binascii.Error as error:
            raise parser.error(f"bad constant: {error}") from error
        if len(content) != described.bytes():
            raise parser.error(f"a constant of {described} has {len(content)} bytes")
        target = f"constant_{len(self._values)}"
        shape, stride = ([hint_of(size) for size in sizes] for sizes in (described.shape, described.stride))
        tensor = torch.empty_strided(shape, stride, dtype=described.dtype, device=described.device)
        if content:
            tensor.copy_(torch.frombuffer(content, dtype=described.dtype).reshape(shape))
        self._root.register_buffer(target, tensor)
        node = self._graph.create_node("get_attr", target, name=self._new_name())
        node.meta["val"] = fake
        return node

    def _operator(self, call: Call, parser: Parser) -> torch.fx.Node:
        parser.take("->")
        if call.arguments:
            raise parser.error(f"{call.name} has an argument without a name")
        named = {name: self._argument(value, parser) for name, value in call.named}
        if len(named) != len(call.named):
            raise parser.error(f"{call.name} has an argument twice")
        target = SYMBOLIC_OPERATORS.get(call.name)
        if target is None:
            target, args, kwargs = self._torch_call(call.name, named, parser)
        else:
            args, kwargs = self._number_arguments(named, parser), {}
        node = self._graph.create_node("call_function", target, args, kwargs, name=self._new_name())
        node.meta["val"] = self._value(parser.value(), parser)
        return node

    def _number_arguments(self, named: dict[str, Any], parser: Parser) -> tuple[Any, ...]:
        if list(named) != [f"arg{index}" for index in range(len(named))]:
            raise parser.error(f"expected arg0, arg1..., found {list(named)}")
        return tuple(named.values())

    def _torch_call(
        self, name: str, named: dict[str, Any], parser: Parser
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        operator = operator_by_name(name)
        if not is_operator(operator):
            raise parser.error(f"operator {name} is not registered here")
        schema = schema_arguments(operator)
        missing = [item.name for item in schema if item.name not in named and not item.has_default]
        unknown = sorted(set(named) - {item.name for item in schema})
        if missing or unknown:
            raise parser.error(f"{name} lacks {missing}, or has unknown arguments {unknown}")
        args = tuple(named.get(item.name, item.default) for item in schema if not item.keyword_only)
        kwargs = {item.name: named[item.name] for item in schema if item.keyword_only and item.name in named}
        return operator, args, kwargs

    def _output(self, parser: Parser) -> None:
        call = parser.value()
        named = dict(call.named) if isinstance(call, Call) else {}
        if len(named) != 2 or set(named) != {"alias", "exact"} or len(call.arguments) != 2:
            raise parser.error("a result is return(%value, meta, alias=..., exact=...)")
        node = self._argument(call.arguments[0], parser)
        meta = value_meta(self._value(call.arguments[1], parser))
        alias, exact = named["alias"], named["exact"]
        alias_fits = alias is None or (type(alias) is int and 0 <= alias < len(self._inputs))
        if not isinstance(node, torch.fx.Node) or not isinstance(meta, TensorMeta) or not alias_fits:
            raise parser.error("a result names a value, a tensor and the input it may share storage with")
        if not isinstance(exact, bool):
            raise parser.error(f"exact is true or false, not {exact!r}")
        self._outputs.append(RegionOutput(node.name, meta, alias, exact))

    def _offset(self, parser: Parser) -> None:
        call = _call(parser.value(), "offset", 2, parser)
        node = self._argument(call.arguments[0], parser)
        if not isinstance(node, torch.fx.Node):
            raise parser.error("an offset names a value")
        with parser_errors(parser):
            node.meta["val"] = self._moved(node.meta["val"], call.arguments[1], parser)

    def _moved(self, value: Any, begin: Any, parser: Parser) -> Any:
        """A fake value with tensors that begin elsewhere in their storages."""
        if isinstance(value, tuple) and isinstance(begin, tuple) and len(value) == len(begin):
            return tuple(self._moved(*pair, parser) for pair in zip(value, begin, strict=True))
        if isinstance(value, torch.Tensor) and not isinstance(begin, tuple):
            place = self._size(begin, parser)
            return fake_tensor(self._mode, value.shape, value.stride(), value.dtype, value.device, place)
        if begin != 0:
            raise parser.error("an offset has a number for each tensor")
        return value

    def _match(self, parser: Parser) -> None:
        call = parser.value()
        if not isinstance(call, Call) or not call.arguments or not isinstance(call.arguments[0], str):
            raise parser.error('a match is match("pattern", %value, ...)')
        nodes = [self._argument(item, parser) for item in call.arguments[1:]]
        if not all(isinstance(node, torch.fx.Node) for node in nodes):
            raise parser.error("a match lists values")
        self._matches.append((call.arguments[0], tuple(node.name for node in nodes)))

    # --- values ------------------------------------------------------------------------------------------------------

    def _argument(self, value: Any, parser: Parser) -> Any:
        if isinstance(value, Reference):
            if value.number >= len(self._values):
                raise parser.error(f"%{value.number} is used before it is computed")
            return self._values[value.number]
        if isinstance(value, tuple):
            return [self._argument(item, parser) for item in value]
        if isinstance(value, Call):
            return read_torch_value(value, parser)
        if isinstance(value, Word):
            raise parser.error(f"unexpected word {value.text!r}")
        return value

    def _value(self, value: Any, parser: Parser) -> Any:
        """The fake value of a parsed meta."""
        if isinstance(value, tuple):
            return tuple(self._value(item, parser) for item in value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, Call) and value.name == "tensor":
            return self._tensor(value, parser)
        return self._size(value, parser)

    def _size(self, value: Any, parser: Parser) -> Any:
        if type(value) is int:
            return value
        return symbolic_number(self._mode.shape_env, read_expression(value, self._symbols, parser))

    def _tensor(self, call: Call, parser: Parser) -> torch.Tensor:
        _call(call, "tensor", 4, parser)
        dtype, shape, stride, device = call.arguments
        if not isinstance(shape, tuple) or not isinstance(stride, tuple) or not isinstance(device, str):
            raise parser.error('a tensor is tensor(dtype, [sizes], [strides], "device")')
        sizes = [self._size(item, parser) for item in shape]
        steps = [self._size(item, parser) for item in stride]
        kind, place = read_dtype(dtype, parser), read_device(device, parser)
        with parser_errors(parser):
            return fake_tensor(self._mode, sizes, steps, kind, place)


@contextlib.contextmanager
def parser_errors(parser: Parser) -> Iterator[None]:
    """What torch raises over an impossible size or symbol becomes an error that names the line."""
    try:
        yield
    except Exception as error:
        raise parser.error(f"{type(error).__name__}: {error}") from error


def _read_header(line: str) -> tuple[Phase, OpLevel, bool]:
    """The phase, the level of the ops, and whether results must be repeatable."""
    words = line.removeprefix(HEADER + " ").removesuffix(DETERMINISTIC).split(" ")
    phase, level = words if len(words) == 2 else (words[0], "aten")
    fits = len(words) == 1 or (len(words) == 2 and level in LEVELS[1:])
    if not line.startswith(HEADER + " ") or phase not in get_args(Phase) or not fits:
        expected = f"{HEADER} inference|forward|backward[ {'| '.join(LEVELS[1:])}][{DETERMINISTIC}]"
        raise RegionTextError(f"expected '{expected}', found {line!r}", where="line 1")
    return phase, level, line.endswith(DETERMINISTIC)  # type: ignore[return-value]


def _read_hint(parser: Parser) -> tuple[str, int]:
    parser.take("hint")
    name, hint = parser.word(), parser.value()
    parser.end()
    if type(hint) is not int:
        raise parser.error(f"a hint is an integer, not {hint!r}")
    return name, hint


def _call(value: Any, name: str, count: int, parser: Parser) -> Call:
    if not isinstance(value, Call) or value.name != name or len(value.arguments) != count or value.named:
        raise parser.error(f"expected {name}(...) with {count} items, found {value!r}")
    return value
