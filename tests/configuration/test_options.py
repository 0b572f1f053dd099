"""``torch.compile(options=...)`` over a configuration, and the schema for editors."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from mixbackend.configuration import Config, ConfigurationProblemsError, json_schema, load_config

BASE = {
    "rules": [{"match": {"op": "aten.mm"}, "prefer": "eager"}],
    "verify": {"when": "always", "factor": 2.0},
    "min_region": {"eager": 2},
}


def test_flat_and_nested_options_are_the_same() -> None:
    base = load_config(BASE)
    flat = base.with_options({"verify.when": "off", "on_failure": "raise"})
    nested = base.with_options({"verify": {"when": "off"}, "on_failure": "raise"})
    assert flat == nested and flat.verify.when == "off" and flat.on_failure == "raise"
    assert flat.verify.factor == 2.0, "what the options do not name stays"
    assert base.verify.when == "always", "the original is not changed"


def test_mappings_merge_and_lists_are_replaced() -> None:
    changed = load_config(BASE).with_options({"min_region": {"onnxruntime": 3}, "rules": []})
    assert changed.min_region == (("eager", 2), ("onnxruntime", 3)) and changed.rules == ()


def test_no_options_give_an_equal_configuration() -> None:
    base = load_config(BASE)
    assert base.with_options({}) == base


def test_rules_keep_their_origin(tmp_path: object) -> None:
    base = load_config(BASE)
    assert base.with_options({"on_failure": "raise"}).rules[0].origin == base.rules[0].origin != ""


def test_wrong_options_are_all_reported() -> None:
    with pytest.raises(ConfigurationProblemsError) as caught:
        load_config(BASE).with_options({"verify.wen": "off", "on_failure": "rais", "objective": "memory", 3: 4})
    text = str(caught.value)
    assert len(caught.value.problems) == 4 and text.count("torch.compile(options={...})") == 4
    for words in ("did you mean 'when'?", "did you mean 'raise'?", "not built yet", "keys are text"):
        assert words in text


def test_a_dotted_option_below_a_scalar_is_an_error() -> None:
    with pytest.raises(ConfigurationProblemsError, match="weights"):
        Config().with_options({"weights.mode": "live"})


def test_the_schema_is_there_beside_lock_files():
    import_module("mixbackend.locking.model")  # which has models of its own
    assert "LockedGraph" not in json_schema()["$defs"]


def test_the_schema_names_every_key_with_a_description() -> None:
    schema = json_schema()
    json.dumps(schema)
    assert set(schema["properties"]) == set(Config.model_fields) and schema["additionalProperties"] is False
    for name, part in [("Config", schema), *schema["$defs"].items()]:
        for key, entry in part["properties"].items():
            assert entry.get("description") or "$ref" in entry, f"{name}.{key} has no description"


def test_the_schema_offers_nothing_that_is_not_built() -> None:
    schema = json_schema()
    assert schema["properties"]["weights"]["enum"] == ["auto", "live", "frozen"]
    assert schema["$defs"]["SearchConfig"]["properties"]["mode"]["enum"] == ["estimate", "measure"]
    assert schema["properties"]["objective"]["enum"] == ["latency", "compile_time"]


def test_the_schema_says_mapping_where_pairs_are_kept() -> None:
    assert json_schema()["properties"]["min_region"]["type"] == "object"
