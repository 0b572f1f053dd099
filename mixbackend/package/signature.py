"""Signature: what a program takes and returns, and what is asserted of it, as plain data.

Place: written by ``exported``, a part of the file, read by ``arguments``.
Symbols are called ``s0``, ``s1``... in the order in which the graph takes them; other symbolic sizes, and both sides of
a guard, are in the grammar of ``contracts.region_grammar``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Union

import sympy
from pydantic import Field

from mixbackend.configuration.fields import Flag, FrozenModel, Text
from mixbackend.contracts.region_grammar import Parser, SymbolNames, read_expression
from mixbackend.package.trees import Tree

Integer = Annotated[int, Field(strict=True)]
Size = Union[Annotated[int, Field(strict=True, ge=0)], Text]
Plain = Union[
    Annotated[bool, Field(strict=True)], Integer, Annotated[float, Field(strict=True)], Annotated[str, Field()], None
]
"""What is no tensor, and the same in every call."""


class TensorInput(FrozenModel):
    """A tensor.

    Attributes:
        strides: those of its memory; in order of its dimensions where they are symbols; ``None``: any.
        written: whether the program writes into it.
    """

    kind: Literal["tensor"] = "tensor"
    dtype: Text
    device: Text
    shape: tuple[Size, ...]
    strides: tuple[Integer, ...] | Literal["row-major"] | None = None
    written: Flag = False


class NumberInput(FrozenModel):
    """An integer that differs from call to call."""

    kind: Literal["number"] = "number"
    symbol: Text


class FixedInput(FrozenModel):
    """A value that the program was exported with."""

    kind: Literal["fixed"] = "fixed"
    value: Plain


Input = Annotated[Union[TensorInput, NumberInput, FixedInput], Field(discriminator="kind")]


class Symbol(FrozenModel):
    """A number that calls bring: a size, or an integer argument; with inclusive bounds."""

    name: Text
    lower: Integer
    upper: Integer | None = None


class Guard(FrozenModel):
    """What else is asserted of symbols."""

    relation: Literal["==", "!=", "<", "<=", ">", ">="]
    left: Size
    right: Size

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


class Output(FrozenModel):
    """A leaf of what is returned: a result of the graph, by its place; or the same value in every call."""

    place: Annotated[int, Field(strict=True, ge=0)] | None = None
    value: Plain = None


class Signature(FrozenModel):
    """See the module's docstring.

    Attributes:
        arguments: nesting of ``(args, kwargs)``.
        names: of parameters that may be passed by position.
        inputs: leaves of the arguments.
        symbols: in the order in which the graph takes them.
        guards: what is asserted of them.
        results, outputs: nesting and leaves of what is returned.
    """

    arguments: Tree
    names: tuple[Text, ...] = ()
    inputs: tuple[Input, ...]
    symbols: tuple[Symbol, ...] = ()
    guards: tuple[Guard, ...] = ()
    results: Tree
    outputs: tuple[Output, ...]


def size_text(expression: sympy.Expr) -> Size:
    """An expression over symbols that keep their names.

    Raises:
        RegionTextError: it has no text.
    """
    if isinstance(expression, sympy.Integer):
        return int(expression)
    names = SymbolNames()
    names.names = {symbol: str(symbol) for symbol in expression.free_symbols}  # type: ignore[misc]
    return names.expression(expression)


def read_size(size: Size, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
    """The expression of a size.

    Raises:
        RegionTextError: it is none over these symbols.
    """
    if isinstance(size, int):
        return sympy.Integer(size)
    parser = Parser(size, 1)
    expression = read_expression(parser.value(), dict(symbols), parser)
    parser.end()
    return expression
