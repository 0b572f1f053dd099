"""Grammar of the intermediate representation: what each node is made of, read off the types of its fields.

Place: below ``scalar``, ``stages``, ``kernel`` and ``program``. Their dataclasses are the only list of node types and
of their parts; every walk over nodes is a function of this module.
The type of a field says which parts it holds: an ``Expr`` is a value, a ``sympy.Expr`` an index expression, a tuple of
``Loop`` or ``KernelLoop`` loops, and a symbol in a pair with a value is bound. Parts may be optional, and lie in tuples
and pairs. Parts of any other node in a field, as of a ``Part`` or a ``Statement``, are parts of the whole.
Invariants: parts come in the order of fields; a node without replaced parts is the same object.
Non-goals: what nodes mean; symbols inside index expressions (``indices``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import attrgetter, is_
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import sympy

T = TypeVar("T")


class Value:
    """A node that computes a number at one point."""

    __slots__ = ()


class Iteration:
    """A node that is a loop."""

    __slots__ = ()


# -- parts of a node, not of its parts ------------------------------------------------------------------------------


def expressions_of(node: Any) -> tuple[Any, ...]:
    """Values that a node is made of."""
    return _VALUES[type(node)].parts(node)


def map_expressions(node: T, function: Callable[[Any], Any]) -> T:
    """The node with each of its values replaced."""
    return _VALUES[type(node)].mapped(node, function)  # type: ignore[no-any-return]


def index_expressions_of(node: Any) -> tuple[sympy.Expr, ...]:
    """Index expressions that stand in a node itself."""
    return _INDICES[type(node)].parts(node)


def map_index_expressions(node: T, function: Callable[[sympy.Expr], sympy.Expr]) -> T:
    """The node with each of its own index expressions replaced; those of its values stay."""
    return _INDICES[type(node)].mapped(node, function)  # type: ignore[no-any-return]


def bound_symbols_of(node: Any) -> tuple[sympy.Symbol, ...]:
    """Symbols that a node binds to values."""
    return _BOUND[type(node)].parts(node)


def map_bound_symbols(node: T, function: Callable[[sympy.Symbol], sympy.Symbol]) -> T:
    """The node with each symbol that it binds replaced; index expressions stay."""
    return _BOUND[type(node)].mapped(node, function)  # type: ignore[no-any-return]


def loops_of(node: Any) -> tuple[Any, ...]:
    """Every loop of a node."""
    return _LOOPS[type(node)].parts(node)


def map_loops(node: T, function: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> T:
    """The node with each of its lists of loops replaced; index expressions stay."""
    return _LOOPS[type(node)].mapped(node, function)  # type: ignore[no-any-return]


# -- whole trees ----------------------------------------------------------------------------------------------------


def walk(*wholes: Any) -> Iterator[Any]:
    """All distinct values in some nodes, themselves included, parts before wholes, in a fixed order."""
    roots: list[Any] = []
    for whole in wholes:
        roots.extend((whole,) if isinstance(whole, Value) else expressions_of(whole))
    return iter(_in_order(roots))


def _in_order(roots: list[Any]) -> dict[Any, tuple[Any, ...]]:
    """The parts of each distinct value in some values, below them as well; parts come before wholes."""
    shapes = _VALUES
    found: dict[Any, tuple[Any, ...]] = {}
    pending = roots[::-1]
    while pending:
        node = pending.pop()
        if type(node) is tuple:
            # A whole; its parts have been found since.
            found[node[0]] = node[1]
        elif node not in found:
            parts = shapes[type(node)].parts(node)
            if parts:
                pending.append((node, parts))
                pending.extend(parts[::-1])
            else:
                found[node] = parts
    return found


@overload
def rewrite(whole: Value, function: Callable[[Any], Any]) -> Any: ...
@overload
def rewrite(whole: T, function: Callable[[Any], Any]) -> T: ...
def rewrite(whole: Any, function: Callable[[Any], Any]) -> Any:
    """Rebuild values from their parts upwards; ``function`` sees each node with its parts already rewritten.

    Equal parts of a value are rewritten once and stay shared. Of a node that is no value, every value is rewritten.
    """
    if not isinstance(whole, Value):
        return map_expressions(whole, lambda value: rewrite(value, function))
    shapes = _VALUES
    done: dict[Any, Any] = {}
    for node, parts in _in_order([whole]).items():
        done[node] = function(shapes[type(node)].mapped(node, done.__getitem__) if parts else node)
    return done[whole]


def all_index_expressions(*wholes: Any) -> Iterator[sympy.Expr]:
    """Index expressions in some nodes and in all values below."""
    for whole in wholes:
        if not isinstance(whole, Value):
            yield from index_expressions_of(whole)
    for node in walk(*wholes):
        yield from index_expressions_of(node)


def reindex(whole: T, function: Callable[[sympy.Expr], sympy.Expr]) -> T:
    """A node with all index expressions replaced, its own and those in its values."""
    made: Any = rewrite(whole, lambda node: map_index_expressions(node, function))
    return made if isinstance(whole, Value) else map_index_expressions(made, function)  # type: ignore[no-any-return]


# -- reading the types of fields ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """How parts lie in a field or a node.

    Attributes:
        parts: lists them.
        mapped: gives the same with each of them replaced.
    """

    parts: Callable[[Any], tuple[Any, ...]]
    mapped: Callable[[Any, Callable[[Any], Any]], Any]


def _itself(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return parts


_EMPTY: tuple[Any, ...] = ()
_NONE = _Shape(lambda node: (), lambda node, function: node)
_ONE = _Shape(lambda part: (part,), lambda part, function: function(part))
_LIST = _Shape(_itself, lambda parts, function: function(parts))


class _Sort(dict[type, _Shape]):
    """Shapes of node types, of parts of one sort; made when first wanted.

    Args:
        leaf: shape of a field of a type that is made of nothing but parts of this sort; ``None`` for other types.
    """

    def __init__(self, leaf: Callable[[Any], _Shape | None]) -> None:
        super().__init__()
        self._leaf = leaf

    def __missing__(self, node: type) -> _Shape:
        types = get_type_hints(node)
        found = [(item.name, self._shape(types[item.name])) for item in fields(node) if item.init]  # type: ignore[arg-type]
        self[node] = _of_fields([(name, shape) for name, shape in found if shape is not None])
        return self[node]

    def _shape(self, type_: Any) -> _Shape | None:
        leaf = self._leaf(type_)
        if leaf is not None:
            return leaf
        options = get_args(type_)
        if get_origin(type_) in (Union, UnionType):
            shape = next(filter(None, map(self._shape, options)), None)
            return shape if shape is None or type(None) not in options else _optional(shape)
        if get_origin(type_) is tuple:
            if options[-1] is Ellipsis:
                inner = self._shape(options[0])
                return None if inner is None else _many(inner)
            places = [(place, shape) for place, item in enumerate(options) if (shape := self._shape(item)) is not None]
            return _at(*places[0]) if places else None
        if not isinstance(type_, type) or not is_dataclass(type_) or issubclass(type_, (Value, Iteration)):
            return None
        # Which of several node types it is, each value says.
        return _Shape(
            lambda node: self[type(node)].parts(node), lambda node, function: self[type(node)].mapped(node, function)
        )


def _of_fields(shapes: list[tuple[str, _Shape]]) -> _Shape:
    if not shapes:
        return _NONE
    listing = [(attrgetter(name), shape.parts) for name, shape in shapes]
    # An empty list of loops is a list that may be replaced; without parts of other sorts there is nothing to do.
    mapping = [(name, attrgetter(name), shape.mapped, shape is _LIST) for name, shape in shapes]

    def parts(node: Any) -> tuple[Any, ...]:
        found = _EMPTY
        for get, own_parts in listing:
            value = get(node)
            if value is not None and value is not _EMPTY:
                found += own_parts(value)
        return found

    def mapped(node: Any, function: Callable[[Any], Any]) -> Any:
        changed = {}
        for name, get, own_mapped, is_list in mapping:
            old = get(node)
            if old is None or (old is _EMPTY and not is_list):
                continue
            new = own_mapped(old, function)
            if new is not old:
                changed[name] = new
        return replace(node, **changed) if changed else node

    return _of_field(*shapes[0]) if len(shapes) == 1 else _Shape(parts, mapped)


def _of_field(name: str, shape: _Shape) -> _Shape:
    get, own_parts, own_mapped = attrgetter(name), shape.parts, shape.mapped

    def mapped(node: Any, function: Callable[[Any], Any]) -> Any:
        old = get(node)
        new = own_mapped(old, function)
        return node if new is old else replace(node, **{name: new})

    return _Shape(get if own_parts is _itself else lambda node: own_parts(get(node)), mapped)


def _optional(shape: _Shape) -> _Shape:
    parts, mapped = shape.parts, shape.mapped
    return _Shape(
        lambda value: () if value is None else parts(value),
        lambda value, function: None if value is None else mapped(value, function),
    )


def _many(inner: _Shape) -> _Shape:
    inner_parts, inner_mapped = inner.parts, inner.mapped
    alone = inner is _ONE

    def parts(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(part for value in values for part in inner_parts(value))

    def mapped(values: tuple[Any, ...], function: Callable[[Any], Any]) -> tuple[Any, ...]:
        new = tuple(map(function, values) if alone else (inner_mapped(value, function) for value in values))
        return values if all(map(is_, new, values)) else new

    return _Shape(_itself if alone else parts, mapped)


def _at(place: int, inner: _Shape) -> _Shape:
    """Parts in one place of a tuple."""

    def mapped(values: tuple[Any, ...], function: Callable[[Any], Any]) -> tuple[Any, ...]:
        new = inner.mapped(values[place], function)
        return values if new is values[place] else (*values[:place], new, *values[place + 1 :])

    return _Shape(lambda values: inner.parts(values[place]), mapped)


def _is_a(type_: Any, kind: type) -> bool:
    return isinstance(type_, type) and issubclass(type_, kind)


def _loops(type_: Any) -> _Shape | None:
    is_list = get_origin(type_) is tuple and _is_a(get_args(type_)[0], Iteration)
    return _LIST if is_list else None


_VALUES = _Sort(lambda type_: _ONE if _is_a(type_, Value) else None)
_INDICES = _Sort(lambda type_: _ONE if type_ is sympy.Expr else None)
_BOUND = _Sort(
    lambda type_: _at(0, _ONE) if get_args(type_)[:1] == (sympy.Symbol,) and ... not in get_args(type_) else None
)
_LOOPS = _Sort(_loops)
