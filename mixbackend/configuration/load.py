"""The way in: anything a user may give becomes a ``Config``, or one error with all that is wrong.

Place: called by ``auto()``, ``explain()`` and the command line.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Union

from pydantic import ValidationError

from mixbackend import registry
from mixbackend.configuration.checks import find_problems, unknown_backends
from mixbackend.configuration.document import Document, read_file, read_mapping
from mixbackend.configuration.model import ALREADY_CHECKED, Config
from mixbackend.configuration.problems import ConfigurationProblemsError, explain_pydantic

Source = Union[None, str, os.PathLike[str], Mapping[str, Any], Config]
"""Nothing (the defaults), the path of a YAML file, a mapping with the same keys, or a ready configuration."""


def load_config(source: Source = None, known_backends: Collection[str] | None = None) -> Config:
    """Read and validate a configuration.

    Args:
        source: see ``Source``.
        known_backends: names that may be used; default, those of the registry.

    Raises:
        ConfigurationProblemsError: (a ``ConfigurationError``) with every problem, by file, line and column.
    """
    if isinstance(source, Config):
        document = read_mapping(source.model_dump(), "Config")
        validate(document, known_backends)
        return source
    if source is None:
        return Config()
    if isinstance(source, Mapping):
        return validate(read_mapping(source, "the configuration"), known_backends)
    if isinstance(source, (str, os.PathLike)):
        return validate(read_file(source), known_backends)
    raise TypeError(f"a configuration is a path, a mapping, a Config or None, not a {type(source).__name__}")


def validate(document: Document, known_backends: Collection[str] | None = None) -> Config:
    """Turn a document into a ``Config``.

    Raises:
        ConfigurationProblemsError: all of them.
    """
    known = registry.names() if known_backends is None else known_backends
    found = [(path, message, False) for path, message in find_problems(document.data)]
    found += [(path, message, path[0] == "min_region") for path, message in unknown_backends(document.data, known)]
    config = None
    if document.data is not None:
        try:
            config = Config.model_validate(document.data, context={ALREADY_CHECKED: True})
        except ValidationError as error:
            for entry in error.errors(include_url=False):
                path, message = explain_pydantic(entry, Config)
                found.append((path, message, entry["type"] == "extra_forbidden"))
    said = [problem.path for problem in document.problems]
    new = [entry for entry in found if not any(entry[0][: len(path)] == path for path in said)]
    problems = document.problems + [document.problem(path, text, at_key) for path, text, at_key in new]
    if problems or config is None:
        raise ConfigurationProblemsError(problems)
    rules = tuple(rule.at(_origin(document, index)) for index, rule in enumerate(config.rules))
    return config.model_copy(update={"rules": rules})


def _origin(document: Document, index: int) -> str:
    line, _ = document.values.get(("rules", index), (0, 0))
    return f"{document.origin}:{line}" if line else f"{document.origin}: rules[{index}]"
