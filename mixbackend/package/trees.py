"""Trees: the nesting of arguments and results, as plain data.

Place: below ``signature``. Input: a form of torch's pytrees; later, values. Output: ``Tree``, which takes values apart
into leaves and puts leaves together.
Invariants: no class is looked up by a name that a file holds: tuples, lists, dictionaries and named tuples are made
anew; objects of other classes that torch can take apart come back as ``Fields``, if the class names its parts, and are
passed as dictionaries.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn

from mixbackend.configuration.fields import FrozenModel
from mixbackend.contracts import PackageError, PackageInputError
from mixbackend.contracts.torch_compat import tree_children


class Fields(dict[str, Any]):
    """Results by name, as attributes too: what an object of a class of the model's was."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Tree(FrozenModel):
    """A node; a leaf has no items.

    Attributes:
        kind: what it is.
        keys: of its items: of a dictionary, or names of fields.
        items: below it.
        name: of the class, for people.
    """

    kind: Literal["leaf", "tuple", "list", "dict", "named", "fields"] = "leaf"
    keys: tuple[str | int, ...] = ()
    items: tuple[Tree, ...] = ()
    name: str = ""

    @property
    def leaves(self) -> int:
        """How many there are."""
        return 1 if self.kind == "leaf" else sum(item.leaves for item in self.items)

    def flat(self, value: Any, path: str) -> Iterator[Any]:
        """The leaves of a value.

        Args:
            path: to the value, for errors.

        Raises:
            PackageInputError: it is nested otherwise.
        """
        if self.kind == "leaf":
            yield value
        elif self.kind in ("dict", "fields"):
            yield from self._flat_mapping(value, path)
        else:
            if not isinstance(value, (tuple, list)) or len(value) != len(self.items):
                self._mismatch(value, path, f"a {self.name or self.kind} of {len(self.items)}")
            for place, (item, part) in enumerate(zip(self.items, value, strict=True)):
                yield from item.flat(part, f"{path}[{place}]")

    def _flat_mapping(self, value: Any, path: str) -> Iterator[Any]:
        if not isinstance(value, Mapping) or set(value) != set(self.keys):
            self._mismatch(value, path, f"a dictionary with the keys {list(self.keys)}")
        for key, item in zip(self.keys, self.items, strict=True):
            yield from item.flat(value[key], f"{path}[{key!r}]")

    def _mismatch(self, value: Any, path: str, wanted: str) -> NoReturn:
        given = f"one with {list(value)}" if isinstance(value, Mapping) else f"a {type(value).__name__}"
        if isinstance(value, (tuple, list)):
            given = f"{given} of {len(value)}"
        raise PackageInputError(f"{path} is {given}; the program was exported with {wanted} there")

    def paths(self, path: str) -> Iterator[str]:
        """Where its leaves are."""
        if self.kind == "leaf":
            yield path
        for place, item in enumerate(self.items):
            key = self.keys[place] if self.keys and self.kind != "named" else place
            yield from item.paths(f"{path}[{key!r}]")

    def whole(self, leaves: Iterator[Any]) -> Any:
        """A value of these leaves."""
        if self.kind == "leaf":
            return next(leaves)
        parts = [item.whole(leaves) for item in self.items]
        if self.kind in ("dict", "fields"):
            pairs: Any = zip(self.keys, parts, strict=True)
            return dict(pairs) if self.kind == "dict" else Fields(pairs)
        if self.kind == "named":
            return collections.namedtuple(self.name, self.keys)(*parts)  # type: ignore[misc,arg-type]
        return tuple(parts) if self.kind == "tuple" else parts


def tree_of(spec: Any) -> Tree:
    """A form of torch's as a tree.

    Raises:
        PackageError: a dictionary has keys that are neither texts nor integers.
    """
    node = tree_children(spec)
    if node is None:
        return Tree()
    kind, context, children = node
    items = tuple(map(tree_of, children))
    if kind in (tuple, list):
        return Tree(kind="tuple" if kind is tuple else "list", items=items)
    if kind in (dict, collections.OrderedDict, collections.defaultdict):
        keys = context[1] if kind is collections.defaultdict else context
        return Tree(kind="dict", keys=_keys(keys), items=items)
    if kind is collections.namedtuple:
        return Tree(kind="named", keys=tuple(context._fields), items=items, name=context.__name__)
    name = getattr(kind, "__name__", str(kind))
    if _names_parts(context, len(items)):
        return Tree(kind="fields", keys=_keys(context), items=items, name=name)
    return Tree(kind="list", items=items, name=name)


def _names_parts(context: Any, count: int) -> bool:
    named = isinstance(context, (list, tuple)) and len(context) == count
    return named and count > 0 and all(isinstance(key, str) for key in context)


def _keys(keys: Sequence[Any]) -> tuple[str | int, ...]:
    strange = [key for key in keys if type(key) not in (str, int)]
    if strange:
        raise PackageError(
            f"a dictionary has the key {strange[0]!r}: a package has keys that are texts or integers",
            hint="use such keys in what the program takes and returns",
        )
    return tuple(keys)
