"""Plans as YAML, for people to review, pin and edit: ``mixbackend.lock.yaml``.

Place: between a ``Plan`` and a file. Input and output: text. Read with a safe loader; nothing in it is executed.
Invariants: ``plan_from_yaml(plan_to_yaml(plan)) == plan``, to the last bit of every number.
Non-goals: checking a plan against a graph; see ``contracts.check_plan``.
"""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import SafeRepresenter

from mixbackend.contracts import PlacementError, Plan
from mixbackend.partitioner.plan_data import plan_from_data, plan_to_data


def plan_to_yaml(plan: Plan) -> str:
    """Text of a plan."""
    stream = io.StringIO()
    safe_yaml().dump(plan_to_data(plan), stream)
    return stream.getvalue()


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


def plan_from_yaml(text: str) -> Plan:
    """The plan that a text describes.

    Raises:
        PlacementError: the text is no YAML, or not a plan of this version; names the place.
    """
    try:
        data = safe_yaml().load(text)
    except YAMLError as error:
        raise PlacementError(what=f"the plan is not valid YAML: {error}") from error
    return plan_from_data(data)
