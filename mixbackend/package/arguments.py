"""Arguments: from the arguments of a call to the inputs of a graph, with everything checked that was assumed.

Place: between a caller and the executable, below ``program``. Input: a ``Signature``; then the arguments of a call.
Output: the values of symbols and the tensors, in the order in which the graph takes them behind its weights.
Invariants: what comes out fits the graph: types, devices, sizes, ranges, guards, layouts. Everything that does not fit
is in one error. A tensor that lies otherwise than it was traced is copied; one that is written into may not.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from mixbackend.contracts import PackageError, PackageInputError
from mixbackend.contracts.compiled_body import laid
from mixbackend.contracts.torch_compat import storage_key
from mixbackend.package.signature import FixedInput, NumberInput, Signature, TensorInput, read_size

_RELATIONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_REMEMBERED = 256
"""Values of symbols for which it is known what is asserted of them."""

Reader = Callable[[Sequence[Any]], int]


class Arguments:
    """See the module's docstring.

    Args:
        signature: of the program.

    Raises:
        PackageError: no input shows a symbol.
        RegionTextError: a size is no expression.
    """

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        tree = signature.arguments
        self._positional, self._keyword = tree.items
        self._paths = [*self._positional.paths("args"), *self._keyword.paths("kwargs")]
        self._symbols = {item.name: sympy.Symbol(item.name, integer=True) for item in signature.symbols}
        self._shapes = {
            place: tuple(read_size(size, self._symbols) for size in item.shape)
            for place, item in enumerate(signature.inputs)
            if isinstance(item, TensorInput) and any(isinstance(size, str) for size in item.shape)
        }
        self._static = {
            place: tuple(item.shape)
            for place, item in enumerate(signature.inputs)
            if isinstance(item, TensorInput) and place not in self._shapes
        }
        self._tensors = [(place, item) for place, item in enumerate(signature.inputs) if isinstance(item, TensorInput)]
        self._types = {place: _dtype(item.dtype) for place, item in self._tensors}
        self._devices = {place: torch.device(item.device) for place, item in self._tensors}
        self._others = [
            (place, item) for place, item in enumerate(signature.inputs) if not isinstance(item, TensorInput)
        ]
        self._laid = [(place, item.strides) for place, item in self._tensors if item.strides is not None]
        self._written = [place for place, item in self._tensors if item.written]
        self._readers = [self._reader(symbol) for symbol in self._symbols.values()]
        self._guards = [
            (guard, *(read_size(side, self._symbols) for side in (guard.left, guard.right)))
            for guard in signature.guards
        ]
        self._at = functools.lru_cache(maxsize=_REMEMBERED)(self._asserted)

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs of the graph behind its weights.

        Raises:
            PackageInputError: something does not fit; with all of it.
        """
        leaves = self._leaves(args, kwargs)
        problems = [*self._misfits(leaves)]
        if problems:
            raise PackageInputError("; ".join(problems))
        numbers = tuple(read(leaves) for read in self._readers)
        asserted, shapes = self._at(numbers)
        wrong = [place for place, shape in shapes.items() if tuple(leaves[place].shape) != shape]
        if asserted or wrong:
            raise PackageInputError("; ".join([*asserted, *(self._wrong_shape(leaves, place) for place in wrong)]))
        if self._written:
            self._check_memory(leaves)
        for place, strides in self._laid:
            if leaves[place].stride() != strides:
                leaves[place] = self._as_traced(leaves[place], place, strides)
        return [*numbers, *(leaves[place] for place, _ in self._tensors)]

    def _leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        wanted = len(self._positional.items)
        names = self._signature.names
        if len(args) < wanted and kwargs and len(names) >= wanted:
            # Passed by name what was exported by position.
            moved = [name for name in names[len(args) : wanted] if name in kwargs]
            if len(args) + len(moved) == wanted:
                args = [*args, *(kwargs[name] for name in moved)]
                kwargs = {name: value for name, value in kwargs.items() if name not in moved}
        return [*self._positional.flat(tuple(args), "args"), *self._keyword.flat(kwargs, "kwargs")]

    def _misfits(self, leaves: Sequence[Any]) -> Iterator[str]:
        for place, item in self._tensors:
            value = leaves[place]
            if not isinstance(value, torch.Tensor):
                yield f"{self._paths[place]} is a {type(value).__name__}, not a tensor"
            elif value.dtype is not self._types[place]:
                yield f"{self._paths[place]} is of {value.dtype}, exported with torch.{item.dtype}"
            elif value.device != self._devices[place]:
                yield f"{self._paths[place]} is on {value.device}, exported on {item.device}"
            elif value.dim() != len(item.shape):
                yield f"{self._paths[place]} has {value.dim()} dimensions, exported with {len(item.shape)}"
            elif value.layout is not torch.strided:
                yield f"{self._paths[place]} has the layout {value.layout}"
            elif place in self._static and value.shape != self._static[place]:
                yield f"{self._paths[place]} has the sizes {list(value.shape)}, exported with {list(item.shape)}"
        for place, other in self._others:
            yield from self._other_misfits(leaves[place], other, self._paths[place])

    def _other_misfits(self, value: Any, item: NumberInput | FixedInput, path: str) -> Iterator[str]:
        if isinstance(item, NumberInput):
            if type(value) is not int:
                yield f"{path} is a {type(value).__name__}, not an integer"
        elif type(value) is not type(item.value) or value != item.value:
            yield f"{path} is {value!r}, and {item.value!r} is what the program was exported with"

    def _asserted(self, numbers: tuple[int, ...]) -> tuple[list[str], dict[int, tuple[int, ...]]]:
        """What is wrong with values of the symbols; the sizes of inputs that they ask for."""
        problems = []
        known = dict(zip(self._symbols.values(), map(sympy.Integer, numbers), strict=True))
        for item, value in zip(self._signature.symbols, numbers, strict=True):
            if value < item.lower or (item.upper is not None and value > item.upper):
                most = "" if item.upper is None else f" and at most {item.upper}"
                problems.append(f"{self._shown(item.name)} is {value}, exported for at least {item.lower}{most}")
        for guard, left, right in self._guards:
            if not _RELATIONS[guard.relation](left.xreplace(known), right.xreplace(known)):
                values = ", ".join(f"{self._shown(name)} = {known[symbol]}" for name, symbol in self._symbols.items())
                problems.append(f"the program asserts {guard}, and here {values}")
        shapes = {place: tuple(int(size.xreplace(known)) for size in shape) for place, shape in self._shapes.items()}
        return problems, shapes

    def _wrong_shape(self, leaves: Sequence[Any], place: int) -> str:
        item = self._signature.inputs[place]
        assert isinstance(item, TensorInput)
        texts = ", ".join(map(str, item.shape))
        names = {name for size in self._shapes[place] for name in map(str, size.free_symbols)}
        where = "; ".join(f"{name} is {self._shown(name)}" for name in sorted(names))
        return f"{self._paths[place]} has the sizes {list(leaves[place].shape)}, exported with [{texts}] ({where})"

    def _shown(self, name: str) -> str:
        """Where a symbol is read."""
        symbol = self._symbols[name]
        for place, item in enumerate(self._signature.inputs):
            if isinstance(item, NumberInput) and item.symbol == name:
                return self._paths[place]
        for exact in (True, False):
            for place, shape in self._shapes.items():
                for dimension, size in enumerate(shape):
                    if size == symbol if exact else symbol in size.free_symbols:
                        return f"size {dimension} of {self._paths[place]}"
        return name

    def _reader(self, symbol: sympy.Symbol) -> Reader:
        """Reads a symbol off the leaves of a call."""
        for place, item in enumerate(self._signature.inputs):
            if isinstance(item, NumberInput) and item.symbol == symbol.name:
                return operator.itemgetter(place)
        found = [(place, axis, size) for place, shape in self._shapes.items() for axis, size in enumerate(shape)]
        for place, axis, size in found:
            if size == symbol:
                return functools.partial(_read, place, axis, 1, 0)
        for place, axis, size in found:
            # 2*s0 + 1 tells s0, too; that it is whole is seen when sizes are compared.
            factor, rest = size.coeff(symbol, 1), size.coeff(symbol, 0)
            if factor.is_Integer and factor > 0 and rest.is_Integer and size == factor * symbol + rest:
                return functools.partial(_read, place, axis, int(factor), int(rest))
        raise PackageError(f"no input of the program shows the size {symbol}")

    def _check_memory(self, leaves: Sequence[Any]) -> None:
        """What is written into shares its memory with no other argument: the program was traced so."""
        owners: dict[int, int] = {}
        for place in [*self._written, *(place for place, _ in self._tensors if place not in self._written)]:
            other = owners.setdefault(storage_key(leaves[place]), place) if leaves[place].numel() else place
            if other != place and other in self._written:
                raise PackageInputError(
                    f"{self._paths[other]} is written into, and shares memory with {self._paths[place]}",
                    hint="pass a copy of one of them",
                )

    def _as_traced(self, value: torch.Tensor, place: int, strides: Any) -> torch.Tensor:
        made = laid(value, strides)
        item = self._signature.inputs[place]
        if made is not value and isinstance(item, TensorInput) and item.written:
            raise PackageInputError(
                f"{self._paths[place]} is written into, and lies in memory with the strides {list(value.stride())} "
                f"instead of {strides if isinstance(strides, str) else list(strides)}",
                hint="pass it as it lay when the program was exported",
            )
        return made


def _read(place: int, axis: int, factor: int, rest: int, leaves: Sequence[Any]) -> int:
    return int((leaves[place].shape[axis] - rest) // factor)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise PackageError(f"this torch has no dtype {name!r}")
    return found
