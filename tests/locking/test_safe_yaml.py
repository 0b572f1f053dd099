"""What is written for people to edit is read again as it was, and nothing in it is executed."""

from __future__ import annotations

import io

import pytest
from ruamel.yaml.error import YAMLError

from mixbackend.locking.safe_yaml import safe_yaml


@pytest.mark.parametrize("name", ["?a", "-", "&a", "*a", "!a", "%a", "@a", "# a", "", "null", "3", "a: b", "true", "~"])
def test_a_name_that_means_something_in_yaml_survives(name: str) -> None:
    stream, data = io.StringIO(), {"nodes": ["a", name], name: 0.1 + 0.2}
    safe_yaml().dump(data, stream)
    assert safe_yaml().load(stream.getvalue()) == data


def test_nothing_is_executed() -> None:
    with pytest.raises(YAMLError):
        safe_yaml().load("search: !!python/object/apply:os.getcwd []")
