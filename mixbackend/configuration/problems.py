"""Everything that is wrong with a configuration, as values, sorted, in one error.

Place: made by ``document`` (syntax), pydantic (shape) and ``checks`` (meaning); raised once by ``load``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from mixbackend.contracts.errors import ConfigurationError
from mixbackend.nearest_name import did_you_mean, nearest_name

Path = tuple[Any, ...]
"""Keys and list positions from the root: ``("rules", 0, "match", "op")``."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        path: where in the document, empty for the whole.
        message: what is wrong and, where it can be guessed, what was meant.
        file: name of the file, or how else the configuration was given.
        line, column: counted from 1; 0 if there is no text.
    """

    path: Path
    message: str
    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (place, format_path(self.path), self.message) if part)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "key": format_path(self.path),
            "message": self.message,
        }


class ConfigurationProblemsError(ConfigurationError):
    """A configuration is wrong; ``problems`` holds all that was found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column, str(problem))))
        count = len(self.problems)
        found = "\n".join(f"    {problem}" for problem in self.problems)
        super().__init__(
            what=f"{count} problem{'s' if count > 1 else ''} in the configuration\n{found}",
            hint="`mixbackend config schema` prints every key; docs/reference/configuration.md explains them",
        )


def format_path(path: Path) -> str:
    """``rules[0].match.op``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def explain_pydantic(error: Any, root: type[BaseModel]) -> tuple[Path, str]:
    """Path and message of one entry of ``ValidationError.errors()``."""
    path: Path = tuple(error["loc"])
    given, kind = error["input"], error["type"]
    if kind == "extra_forbidden":
        return path, f"unknown key; {did_you_mean(str(path[-1]), _keys_at(root, path[:-1]))}"
    if kind in ("model_type", "model_attributes_type"):
        return path, f"should be a mapping with keys from {', '.join(_keys_at(root, path))}; got {given!r}"
    if kind == "missing":
        return path, "is missing"
    if kind == "literal_error":
        choices = [choice.strip("' ") for choice in error["ctx"]["expected"].replace(" or ", ",").split(",")]
        nearest = nearest_name(str(given), choices)
        suggestion = f"; did you mean {nearest!r}?" if nearest is not None else ""
        return path, f"should be {error['ctx']['expected']}; got {given!r}{suggestion}"
    if kind in ("dtype", "device", "value_error"):
        return path, error["msg"].removeprefix("Value error, ")
    return path, f"{error['msg'].replace('Input should', 'should')}; got {given!r}"


def _keys_at(root: type[BaseModel], path: Path) -> tuple[str, ...]:
    model = root
    for part in path:
        if isinstance(part, int):
            continue
        model = _model_in(model.model_fields[part].annotation) or model
    return tuple(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(argument) for argument in getattr(annotation, "__args__", ()))
    return next((model for model in inner if model is not None), None)
