"""The JSON Schema of the YAML file, for editors: completion, hover texts, errors while typing.

Place: printed by ``mixbackend config schema``.
Invariants: made from the models, so it cannot drift; values that are not built yet are not offered.
Descriptions are the texts below the fields of the models. They are read here, from the source: pydantic would look for
the source of every model when it is made, in all modules of the process, which takes 50 ms of every first call.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from mixbackend.configuration.fields import FrozenModel
from mixbackend.configuration.model import Config

_PACKAGE = __name__.rpartition(".")[0]


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of schema version 1."""
    schema = Config.model_json_schema()
    parts = {"Config": schema, **schema["$defs"]}
    # Lock files are made of such models, too.
    for model in (item for item in _models(FrozenModel) if item.__module__.startswith(_PACKAGE)):
        for name, text in _texts(model).items():
            parts[model.__name__]["properties"][name]["description"] = text
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mixbackend configuration",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _models(base: type[FrozenModel]) -> list[type[FrozenModel]]:
    return [model for direct in base.__subclasses__() for model in (direct, *_models(direct))]


def _texts(model: type[FrozenModel]) -> dict[str, str]:
    """The text below each field."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = text.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[field.target.id] = inspect.cleandoc(value.value)
    return found
