"""Fresh sizes: values of a fake mode that look like given metas, under symbols of that mode.

Place: below modules that trace a region or an op apart from the captured graph: ``op_lowering``, and
``backends.common.retrace``.
Input: metas of what comes in. Output: fake tensors and numbers, the sizes behind the new symbols, and what was assumed
about them, in the old ones.
Invariants: whatever is asked of the new symbols adds no guard to the captured graph.
Non-goals: sizes that depend on data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch

from mixbackend.contracts.ops import ValueMeta
from mixbackend.contracts.sizes import Condition, SymbolicSize
from mixbackend.contracts.tensors import TensorMeta
from mixbackend.contracts.torch_compat import assumptions, fresh_symbol, symbolic_expression, symbolic_integer


@dataclass(frozen=True, slots=True)
class SizePlace:
    """Where what comes in shows a size.

    Attributes:
        position: of the input.
        kind: whether the input is the number, or has it among its sizes or strides.
        axis: of the size or stride.
    """

    position: int
    kind: Literal["number", "size", "stride"]
    axis: int = 0

    def __str__(self) -> str:
        """Python that reads it off ``inputs``."""
        shown = f"inputs[{self.position}]"
        return shown if self.kind == "number" else f"{shown}.{self.kind}({self.axis})"


class FreshSizes:
    """See the module's docstring.

    Args:
        fake_mode: owner of the new symbols.
        metas: of what comes in.

    Attributes:
        originals: the size behind each new symbol.
        places: where each is shown, in the same order.

    Raises:
        ValueError: a size depends on data.
    """

    def __init__(self, fake_mode: Any, metas: Sequence[ValueMeta]) -> None:
        self._fake_mode = fake_mode
        self._renamed: dict[sympy.Expr, sympy.Symbol] = {}
        self.places: list[SizePlace] = []
        self.originals: dict[sympy.Symbol, SymbolicSize] = {}
        shown = [*_sizes(metas)]
        for place, size in shown:
            if size.expression.is_Symbol:
                self._rename(place, size)
        for place, size in shown:
            # A whole expression gets a symbol where its own symbols never come in.
            if not all(symbol in self._renamed for symbol in size.expression.free_symbols):
                self._rename(place, size)

    def symbols(self) -> tuple[Any, ...]:
        """The new symbols as numbers."""
        return tuple(symbolic_integer(self._fake_mode, symbol, size.hint) for symbol, size in self.originals.items())

    def arguments(self) -> Callable[[Sequence[Any]], list[Any]]:
        """Reads the new symbols off a call's inputs, and puts them before these."""
        if not self.places:
            return list
        # As text, since it is asked in every call of a region; nothing but places and axes is in it.
        made: Callable[[Sequence[Any]], list[Any]] = eval(
            f"lambda inputs: [{', '.join(map(str, self.places))}, *inputs]"
        )
        return made

    def value(self, meta: ValueMeta) -> Any:
        """A fake tensor or a number for what comes in."""
        if isinstance(meta, TensorMeta):
            shape = [self.number(size) for size in meta.shape]
            stride = [self.number(step) for step in meta.stride]
            return torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
        if meta is None:
            raise ValueError("something that comes in is neither a tensor nor a number")
        return self.number(meta)

    def number(self, size: Any) -> Any:
        """A size under the new symbols; plain numbers stay."""
        if not isinstance(size, SymbolicSize):
            return size
        if size.expression in self._renamed:
            return symbolic_integer(self._fake_mode, self._renamed[size.expression], size.hint)
        return symbolic_integer(self._fake_mode, size.expression.xreplace(self._renamed), size.hint)

    def _rename(self, place: SizePlace, size: SymbolicSize) -> None:
        """Give a size a symbol."""
        if size.expression in self._renamed:
            return
        if size.hint is None or not size.expression.is_integer:
            raise ValueError(f"size {size} depends on data")
        name = f"region_size_{len(self._renamed)}"
        new = fresh_symbol(self._fake_mode, name, size.hint, size.lower, size.upper)
        symbol = symbolic_expression(new)
        self._renamed[size.expression] = symbol
        self.originals[symbol] = size
        self.places.append(place)


def assumed(fake_mode: Any, originals: Mapping[sympy.Symbol, SymbolicSize]) -> tuple[Condition, ...]:
    """What was assumed about the sizes behind a fake mode's symbols, beyond their bounds.

    Raises:
        ValueError: an assumption cannot be stated as a condition.
    """
    return tuple(condition for _, condition in assumed_guards(fake_mode, originals))


def assumed_guards(
    fake_mode: Any, originals: Mapping[sympy.Symbol, SymbolicSize]
) -> tuple[tuple[sympy.Basic, Condition], ...]:
    """The same, each with what torch would guard, in the sizes behind the symbols.

    Raises:
        ValueError: an assumption cannot be stated as a condition.
    """
    bounds = {symbol: (size.lower, size.upper) for symbol, size in originals.items()}
    back = {symbol: size.expression for symbol, size in originals.items()}
    return tuple((guard.xreplace(back), _condition(guard, originals)) for guard in assumptions(fake_mode, bounds))


def _sizes(metas: Sequence[ValueMeta]) -> Iterator[tuple[SizePlace, SymbolicSize]]:
    """Symbolic sizes with their places; strides are read where nothing else shows a size."""
    found: list[tuple[SizePlace, Any]] = []
    for position, meta in enumerate(metas):
        if isinstance(meta, TensorMeta):
            found += [(SizePlace(position, "size", axis), size) for axis, size in enumerate(meta.shape)]
        else:
            found.append((SizePlace(position, "number"), meta))
    for position, meta in enumerate(metas):
        if isinstance(meta, TensorMeta):
            found += [(SizePlace(position, "stride", axis), step) for axis, step in enumerate(meta.stride)]
    yield from ((place, size) for place, size in found if isinstance(size, SymbolicSize))


def _condition(guard: sympy.Basic, originals: Mapping[sympy.Symbol, SymbolicSize]) -> Condition:
    """A guard as a condition; ``a < b`` becomes ``b - a at least 1``."""
    back = {symbol: size.expression for symbol, size in originals.items()}
    hints = {symbol: sympy.Integer(size.hint) for symbol, size in originals.items()}

    def size_of(expression: sympy.Expr) -> SymbolicSize:
        return SymbolicSize(expression.xreplace(back), int(expression.xreplace(hints)), lower=-(2**62))

    match guard:
        case sympy.Eq(args=(left, right)):
            return Condition(size_of(left - right), "equal", 0)
        case sympy.Ne(args=(left, right)):
            return Condition(size_of(left - right), "other_than", 0)
        case sympy.Le(args=(left, right)) | sympy.Ge(args=(right, left)):
            return Condition(size_of(right - left), "at_least", 0)
        case sympy.Lt(args=(left, right)) | sympy.Gt(args=(right, left)):
            return Condition(size_of(right - left), "at_least", 1)
    raise ValueError(f"the compiler assumed {guard}, which cannot be stated as a condition on the region's sizes")
