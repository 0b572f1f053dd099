"""Overrides of a configuration: what ``torch.compile(options={...})`` carries.

Place: behind ``Config.with_options``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mixbackend.configuration.document import read_mapping
from mixbackend.configuration.load import validate
from mixbackend.configuration.model import Config

ORIGIN = "torch.compile(options={...})"


def override(config: Config, options: Mapping[str, Any]) -> Config:
    """See ``Config.with_options``."""
    merged: dict[str, Any] = config.model_dump(mode="python", exclude_unset=True)
    for key, value in options.items():
        target, parts = merged, str(key).split(".") if isinstance(key, str) else [key]
        for part in parts[:-1]:
            inner = target.get(part)
            target[part] = inner = dict(inner) if isinstance(inner, Mapping) else {}
            target = inner
        target[parts[-1]] = _merge(target.get(parts[-1]), value)
    changed = validate(read_mapping(merged, ORIGIN))
    kept = {rule: rule.origin for rule in config.rules}
    rules = tuple(rule.at(kept.get(rule, rule.origin)) for rule in changed.rules)
    return changed.model_copy(update={"rules": rules})


def _merge(old: Any, new: Any) -> Any:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    merged = dict(old)
    for key, value in new.items():
        merged[key] = _merge(merged.get(key), value)
    return merged
