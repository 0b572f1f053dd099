"""``docs/how-to/explain.md`` names the keys and columns that there are."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from mixbackend.contracts import Refusal
from mixbackend.partitioner.alternatives import Alternative
from mixbackend.partitioner.counterfactuals import NodeOption
from mixbackend.partitioner.explain import Saving
from mixbackend.reporting import NodeAnswer
from mixbackend.reporting.decided import Decided, alternative_data
from mixbackend.reporting.node_answer import HEADINGS

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "explain.md").read_text(encoding="utf-8")


def row(where: str, key: str) -> set[str]:
    """Names in the last cell of a row of the table of keys."""
    (cell,) = re.findall(rf"^\| {where} \| `{key}` \| (.*) \|$", TEXT, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", cell))


def test_the_keys_of_the_dictionary_are_listed() -> None:
    refused = Refusal("mm", "eager", "dtype", "")
    data = alternative_data(Alternative("eager", 1.0, 2, refused))
    assert row("region", "alternatives") == set(data)
    assert row("graph", "decided") - {"estimates", "measurements"} == set(Decided("estimates").to_dict())
    assert row("graph", "advice") == set(Saving("a", "dtype", "op", (), "", 0.0).to_dict())
    (listed,) = re.findall(r"`refused` is `null` or has ([^.]*)\.", TEXT)
    assert set(re.findall(r"`(\w+)`", listed)) == set(data["refused"])


def test_the_keys_of_an_answer_are_listed() -> None:
    option = NodeOption(Alternative("eager", 1.0))
    answer = NodeAnswer("g", "n", "op", "", "", "n", "r0", "fast", None, None, (option,), (), Decided("estimates"))
    (listed,) = re.findall(r"An answer of `why` has (.*)\.$", TEXT, re.DOTALL)
    keys = {"along", "adapted_change_s", "measured_alone_change_s"}
    assert set(re.findall(r"`(\w+)`", listed)) == {*answer.to_dict(), *keys}
    assert set(answer.to_dict()["alternatives"][0]) == {*alternative_data(option.alternative), *keys, "parts"}


def test_the_columns_of_the_example_are_those_of_the_text() -> None:
    example = TEXT.split("## What an answer says")[1].split("```")[1]
    heading = next(line for line in example.splitlines() if " crossings" in line)
    shown = [name for name in HEADINGS if re.search(rf"(?<!\w){name}(?!\w)", heading)]
    assert {"op", "from", "reads", "writes", "crossings", "entry"} <= set(shown)
    assert all(name in TEXT for name in HEADINGS)
    assert "decided by estimates" in example


def test_every_field_of_an_answer_is_documented_data() -> None:
    told = {field.name for field in fields(NodeAnswer)} - {"options", "alone_s", "region_s"}
    assert all(f"`{name}`" in TEXT for name in told)
