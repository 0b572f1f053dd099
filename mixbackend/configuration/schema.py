"""The JSON Schema of the YAML file, for editors: completion, hover texts, errors while typing.

Place: printed by ``mixbackend config schema``.
Invariants: made from the models, so it cannot drift; values that are not built yet are not offered.
"""

from __future__ import annotations

from typing import Any

from mixbackend.configuration.model import Config


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of schema version 1."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mixbackend configuration",
        **{key: value for key, value in Config.model_json_schema().items() if key != "title"},
    }
