"""Values of the canonical region text: one small grammar, written and parsed here.

Place: below ``region_text`` (writes) and ``region_reader`` (reads).
Grammar of a value: ``none``, ``true``, ``false``, integers, floats, JSON strings, ``%3`` (a value of the region),
``s0`` (a symbol), ``[a, b]`` and ``name(a, key=b)``.
Invariants: every value has one spelling; parsing builds plain data and looks nothing up by itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from mixbackend.contracts.errors import RegionTextError
from mixbackend.contracts.sizes import SymbolicSize
from mixbackend.contracts.tensors import TensorMeta
from mixbackend.contracts.torch_compat import symbolic_functions

HEADER = "mixbackend-region 1"
DETERMINISTIC = " deterministic"
"""First words of every region text; the number rises when the form changes."""

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<reference>%[0-9]+)
  | (?P<float>-?(?:inf|nan|[0-9]+(?:\.[0-9]+(?:e[+-]?[0-9]+)?|e[+-]?[0-9]+))(?![A-Za-z0-9_.]))
  | (?P<integer>-?[0-9]+(?![A-Za-z0-9_.]))
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)
  | (?P<mark>->|[\[\](),=])
    )""",
    re.VERBOSE,
)
_WORDS = {"none": None, "true": True, "false": False}


def _torch_values(kind: type) -> dict[str, Any]:
    return {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, kind)}


_DTYPES, _LAYOUTS, _FORMATS = (_torch_values(kind) for kind in (torch.dtype, torch.layout, torch.memory_format))
_LAYOUTS = {
    str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.layout)
}
_FORMATS = {
    str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.memory_format)
}
_NESTING_LIMIT = 64


def region_key(text: str) -> str:
    """SHA-256, in hexadecimal, of a region text without its comments."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reference:
    """``%3``: the value with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Word:
    """A bare word: a symbol, a role, a flag."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """``name(a, key=b)``."""

    name: str
    arguments: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...]


# --- parsing ---------------------------------------------------------------------------------------------------------


class Parser:
    """Parses values out of one line.

    Args:
        text: the line.
        line: its number, for errors.
    """

    def __init__(self, text: str, line: int) -> None:
        self._line = line
        self._tokens = self._split(text)
        self._next = 0

    def _split(self, text: str) -> list[tuple[str, str]]:
        tokens: list[tuple[str, str]] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise self.error(f"cannot read {text[position : position + 20]!r}")
            tokens.append((match.lastgroup, match.group(match.lastgroup)))
            position = match.end()
        return tokens

    def error(self, what: str) -> RegionTextError:
        """An error that names the line."""
        return RegionTextError(what, where=f"line {self._line} of the region text")

    def peek(self) -> str:
        """Text of the next token, ``""`` at the end."""
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    def take(self, expected: str) -> None:
        """Consume one given token."""
        if self.peek() != expected:
            raise self.error(f"expected {expected!r}, found {self.peek() or 'the end of the line'!r}")
        self._next += 1

    def end(self) -> None:
        """Check that nothing is left."""
        if self.peek():
            raise self.error(f"unexpected {self.peek()!r}")

    def word(self) -> str:
        """Consume a bare word."""
        value = self.value()
        if not isinstance(value, Word):
            raise self.error(f"expected a word, found {value!r}")
        return value.text

    def value(self, depth: int = 0) -> Any:
        """Consume one value; lists come back as tuples."""
        if self._next >= len(self._tokens):
            raise self.error("expected a value, found the end of the line")
        if depth > _NESTING_LIMIT:
            raise self.error("values are nested too deeply")
        kind, text = self._tokens[self._next]
        self._next += 1
        if kind == "word":
            return self._word(text, depth)
        if kind == "mark":
            return self._list(text, depth)
        return self._atom(kind, text)

    def _atom(self, kind: str, text: str) -> Any:
        if kind == "reference":
            return Reference(int(text[1:]))
        if kind == "integer":
            return int(text)
        if kind == "float":
            return float(text)
        try:
            return json.loads(text)
        except ValueError as error:
            raise self.error(f"bad string {text}: {error}") from error

    def _word(self, text: str, depth: int) -> Any:
        if self.peek() != "(":
            return _WORDS.get(text, Word(text)) if text in _WORDS else Word(text)
        arguments, named = self._items(")", depth)
        return Call(text, arguments, named)

    def _list(self, text: str, depth: int) -> tuple[Any, ...]:
        if text != "[":
            raise self.error(f"unexpected {text!r}")
        self._next -= 1
        items, named = self._items("]", depth)
        if named:
            raise self.error("a list has no named items")
        return items

    def _items(self, closing: str, depth: int) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
        self._next += 1
        items: list[Any] = []
        named: list[tuple[str, Any]] = []
        while self.peek() != closing:
            if items or named:
                self.take(",")
            item = self.value(depth + 1)
            if isinstance(item, Word) and self.peek() == "=":
                self.take("=")
                named.append((item.text, self.value(depth + 1)))
            else:
                items.append(item)
        self._next += 1
        return tuple(items), tuple(named)


# --- writing ---------------------------------------------------------------------------------------------------------


def write_value(value: Any, symbols: SymbolNames) -> str:
    """Text of a plain value: number, string, dtype, device, layout, memory format, size, meta, or list of such.

    Raises:
        RegionTextError: the value has no text.
    """
    if isinstance(value, Reference):
        return f"%{value.number}"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, (int, str)):
        return json.dumps(value)
    if isinstance(value, float):
        return _write_float(value)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(write_value(item, symbols) for item in value) + "]"
    if isinstance(value, SymbolicSize):
        return symbols.expression(value.expression)
    if isinstance(value, TensorMeta):
        return _write_meta(value, symbols)
    return _write_torch_value(value)


def _write_float(value: float) -> str:
    text = repr(value)
    return text if math.isfinite(value) or text in ("inf", "-inf", "nan") else "nan"


def _write_meta(meta: TensorMeta, symbols: SymbolNames) -> str:
    return write_tensor(meta.dtype, write_value(meta.shape, symbols), write_value(meta.stride, symbols), meta.device)


def write_tensor(dtype: torch.dtype, shape: str, stride: str, device: torch.device) -> str:
    """Text of a tensor's meta, given the texts of its sizes and strides."""
    return f'tensor({str(dtype).removeprefix("torch.")}, {shape}, {stride}, "{device}")'


def _write_torch_value(value: Any) -> str:
    if isinstance(value, complex):
        return f"complex({_write_float(value.real)}, {_write_float(value.imag)})"
    if isinstance(value, torch.device):
        return f'device("{value}")'
    for kind, known in (("dtype", _DTYPES), ("layout", _LAYOUTS), ("format", _FORMATS)):
        name = str(value).removeprefix("torch.")
        if known.get(name) is value:
            return f"{kind}({name})"
    raise RegionTextError(f"an argument of type {type(value).__qualname__} has no text form")


class SymbolNames:
    """Names symbols ``s0``, ``s1``... in order of first appearance and writes expressions over them."""

    def __init__(self) -> None:
        self.names: dict[sympy.Symbol, str] = {}

    def expression(self, expression: sympy.Expr) -> str:
        """Text of an expression; sums, products, minima and maxima are ordered by their text."""
        if isinstance(expression, sympy.Symbol):
            return self.names.setdefault(expression, f"s{len(self.names)}")
        if isinstance(expression, sympy.Integer):
            return str(int(expression))
        if isinstance(expression, sympy.Rational):
            return f"ratio({expression.p}, {expression.q})"
        if isinstance(expression, sympy.Float):
            return _write_float(float(expression))
        name, commutative = _function_name(expression)
        # Symbols not seen yet are named in an order that does not depend on what the capture called them.
        operands = sorted(expression.args, key=self._shape) if commutative else expression.args
        texts = [self.expression(operand) for operand in operands]
        return f"{name}({', '.join(sorted(texts) if commutative else texts)})"

    def _shape(self, expression: sympy.Expr) -> str:
        if isinstance(expression, sympy.Symbol):
            return self.names.get(expression, "~")
        if not expression.args:
            return str(expression)
        return f"{type(expression).__name__}({','.join(sorted(self._shape(item) for item in expression.args))})"


_ARITHMETIC = {"add": sympy.Add, "mul": sympy.Mul, "pow": sympy.Pow}
_COMMUTATIVE = ("Max", "Min")


def _function_name(expression: sympy.Expr) -> tuple[str, bool]:
    for name, kind in _ARITHMETIC.items():
        if isinstance(expression, kind):
            return name, name != "pow"
    name = type(expression).__name__
    if symbolic_functions().get(name) is not type(expression):
        raise RegionTextError(f"a size has no text form: {expression}")
    return name, name in _COMMUTATIVE


# --- from parsed values to torch's -----------------------------------------------------------------------------------


def read_expression(value: Any, symbols: dict[str, sympy.Symbol], parser: Parser) -> sympy.Expr:
    """The sympy expression of a parsed size."""
    if isinstance(value, bool) or value is None:
        raise parser.error(f"{value} is not a size")
    if isinstance(value, int):
        return sympy.Integer(value)
    if isinstance(value, float):
        return sympy.Float(value)
    if isinstance(value, Word):
        if value.text not in symbols:
            raise parser.error(f"symbol {value.text} is not declared")
        return symbols[value.text]
    if not isinstance(value, Call) or value.named:
        raise parser.error(f"{value!r} is not a size")
    operands = [read_expression(item, symbols, parser) for item in value.arguments]
    function = {"ratio": sympy.Rational, **_ARITHMETIC, **symbolic_functions()}.get(value.name)
    if function is None:
        raise parser.error(f"unknown size function {value.name}")
    try:
        return function(*operands)
    except (TypeError, ValueError, AssertionError, ZeroDivisionError) as error:
        raise parser.error(f"bad size {value.name}(...): {error}") from error


def read_torch_value(call: Call, parser: Parser) -> Any:
    """The dtype, device, layout, memory format or complex number of a parsed call."""
    items = tuple(item.text if isinstance(item, Word) else item for item in call.arguments)
    numbers = [item for item in items if isinstance(item, float)]
    if call.name == "complex" and len(items) == len(numbers) == 2:
        return complex(numbers[0], numbers[1])
    if call.name == "device" and len(items) == 1 and isinstance(items[0], str):
        return read_device(items[0], parser)
    known = {"dtype": _DTYPES, "layout": _LAYOUTS, "format": _FORMATS}.get(call.name, {})
    if len(items) == 1 and items[0] in known:
        return known[items[0]]  # type: ignore[index]
    raise parser.error(f"unknown value {call.name}({', '.join(map(str, items))})")


def read_device(text: str, parser: Parser) -> torch.device:
    """A device by its text."""
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise parser.error(f"unknown device {text!r}") from error


def read_dtype(value: Any, parser: Parser) -> torch.dtype:
    """A dtype by its bare name."""
    name = value.text if isinstance(value, Word) else ""
    if name not in _DTYPES:
        raise parser.error(f"unknown dtype {value!r}")
    return _DTYPES[name]
