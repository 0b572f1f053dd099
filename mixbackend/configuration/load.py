"""The way in: anything a user may give becomes a ``Config``, or one error with all that is wrong.

Place: called by ``auto()``, ``explain()`` and the command line.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Union

from mixbackend.configuration.document import read_file, read_mapping
from mixbackend.configuration.model import Config, validate

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
