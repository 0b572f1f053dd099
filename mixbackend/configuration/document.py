"""Reads a configuration into plain data and remembers where everything stands.

Place: first step of ``load``.
Input: a YAML file, or a mapping. Output: a ``Document``: mappings with text keys, tuples, scalars; positions by path.
A backend that stands as an object where its name could is registered for this process, and named.
Invariants: YAML is read in the round-trip mode of ruamel.yaml, which builds no objects from tags; aliases are expanded
up to a bound, so a hostile file cannot fill the memory. The reader is loaded when there is a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel

from mixbackend.configuration.problems import ConfigurationProblemsError, Path, Problem
from mixbackend.contracts import Backend, MixbackendError
from mixbackend.registry import register_backend

MOST_VALUES = 100_000
"""A configuration with more values than this, aliases expanded, is refused."""

Position = tuple[int, int]


@dataclass
class Document:
    """A configuration before validation.

    Attributes:
        origin: file name, or how else it was given.
        data: plain data.
        keys, values: line and column (from 1) of each key and value by path; empty for a mapping.
        problems: what was wrong already.
    """

    origin: str
    data: Any = None
    keys: dict[Path, Position] = field(default_factory=dict)
    values: dict[Path, Position] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, path: Path, message: str, at_key: bool = False) -> Problem:
        """A problem at a path; where the path itself has no position, at the nearest enclosing one."""
        line, column = (0, 0)
        for length in range(len(path), -1, -1):
            part = path[:length]
            tables = (self.keys, self.values) if at_key and length == len(path) else (self.values, self.keys)
            found = next((table[part] for table in tables if part in table), None)
            if found is not None:
                line, column = found
                break
        return Problem(path, message, self.origin, line, column)


def read_file(source: str | os.PathLike[str]) -> Document:
    """Read a YAML file.

    Raises:
        ConfigurationProblemsError: it cannot be read, or is not YAML; with line and column.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    name = os.fspath(source)
    try:
        text = FilePath(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationProblemsError([Problem((), f"cannot be read: {reason}", name)]) from error
    try:
        loaded = YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
        words = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigurationProblemsError([Problem((), f"not valid YAML: {words}", name, *position)]) from error
    except (YAMLError, RecursionError, ValueError) as error:
        raise ConfigurationProblemsError([Problem((), f"not valid YAML: {error}", name)]) from error
    return _document(name, loaded, (1, 1))


def read_mapping(mapping: Mapping[Any, Any], origin: str) -> Document:
    """Take a mapping as if it had been read from a file."""
    return _document(origin, mapping)


def _document(origin: str, loaded: Any, start: Position = (0, 0)) -> Document:
    document = Document(origin)
    document.values[()] = start
    if loaded is None:
        document.data = {}
    elif isinstance(loaded, Mapping):
        document.data = _Plain(document).convert(loaded, ())
    else:
        message = f"should be a mapping of keys such as `backends:`; it is a {type(loaded).__name__}"
        document.problems.append(document.problem((), message))
    return document


class _Plain:
    """One conversion to plain data; records positions and problems in the document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.open: list[int] = []
        self.count = 0

    def convert(self, value: Any, path: Path) -> Any:
        self.count += 1
        if self.count > MOST_VALUES:
            raise ConfigurationProblemsError([self.document.problem((), f"has more than {MOST_VALUES} values")])
        if _tag(value):
            self.document.problems.append(self.document.problem(path, f"tags such as {_tag(value)} are not allowed"))
            return None
        if isinstance(value, Backend):
            return self._registered(value, path)
        if isinstance(value, BaseModel):
            value = value.model_dump(exclude_unset=True)
        if not isinstance(value, (Mapping, list, tuple)):
            return _plain_scalar(value)
        if id(value) in self.open:
            raise ConfigurationProblemsError([self.document.problem(path, "refers to itself")])
        self.open.append(id(value))
        converted = self._mapping(value, path) if isinstance(value, Mapping) else self._sequence(value, path)
        self.open.pop()
        return converted

    def _registered(self, backend: Backend, path: Path) -> str | None:
        """The name of a backend that is given as an object: it is registered for this process."""
        try:
            return register_backend(backend).name
        except MixbackendError as error:
            self.document.problems.append(self.document.problem(path, error.what))
            return None

    def _mapping(self, mapping: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        places = _places(mapping)
        for key, value in mapping.items():
            inner = (*path, str(key))
            if key in places:
                line, column, value_line, value_column = places[key]
                self.document.keys[inner] = (line + 1, column + 1)
                self.document.values[inner] = (value_line + 1, value_column + 1)
            if not isinstance(key, str):
                message = f"keys are text; {key!r} is not"
                self.document.problems.append(self.document.problem(inner, message, at_key=True))
                continue
            plain[str(key)] = self.convert(value, inner)
        return plain

    def _sequence(self, items: Any, path: Path) -> tuple[Any, ...]:
        plain, places = [], _places(items)
        for index, value in enumerate(items):
            inner = (*path, index)
            if index in places:
                line, column = places[index][:2]
                self.document.values[inner] = (line + 1, column + 1)
            plain.append(self.convert(value, inner))
        return tuple(plain)


def _is_read(value: Any) -> bool:
    """Whether a value comes from the reader of YAML."""
    return type(value).__module__.startswith("ruamel.")


def _places(value: Any) -> Mapping[Any, Any]:
    """Lines and columns of what is in a collection, by key or index, where they are known."""
    return (value.lc.data or {}) if _is_read(value) and hasattr(value, "lc") else {}


def _tag(value: Any) -> str:
    tag = getattr(value, "tag", None) if _is_read(value) else None
    return str(getattr(tag, "value", None) or "")


def _plain_scalar(value: Any) -> Any:
    # ruamel's round-trip scalars are subclasses that remember how they were written.
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
