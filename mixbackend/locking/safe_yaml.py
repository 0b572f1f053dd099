"""Plain data as YAML, for people to review and edit: ``mixbackend.lock.yaml``.

Place: under ``text``, which writes the file, and ``reading``. Nothing in a file is executed.
Invariants: what is written is read again as it was, to the last bit of every number.
"""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.representer import SafeRepresenter


class _Quoting(SafeRepresenter):
    """Quotes what starts with a mark: the reader takes an unquoted ``?`` in a list for the start of a mapping."""

    def represent_str(self, text: str) -> Any:
        plain = text[:1].isalnum() or text[:1] == "_"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Quoting.add_representer(str, _Quoting.represent_str)


def safe_yaml() -> YAML:
    """Reader and writer of plain data: keys in their order, innermost collections on one line."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Quoting
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 118
    return yaml
