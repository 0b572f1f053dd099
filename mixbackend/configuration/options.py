"""Overrides of a configuration: what ``torch.compile(options={...})`` carries.

Place: below ``model``, for ``Config.with_options``.
Input: a configuration as plain data, and the overrides. Output: plain data, not validated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ORIGIN = "torch.compile(options={...})"


def with_overrides(data: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's data with some keys replaced; see ``Config.with_options``."""
    merged = dict(data)
    for key, value in options.items():
        target, parts = merged, str(key).split(".") if isinstance(key, str) else [key]
        for part in parts[:-1]:
            inner = target.get(part)
            target[part] = inner = dict(inner) if isinstance(inner, Mapping) else {}
            target = inner
        target[parts[-1]] = _merge(target.get(parts[-1]), value)
    return merged


def _merge(old: Any, new: Any) -> Any:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    merged = dict(old)
    for key, value in new.items():
        merged[key] = _merge(merged.get(key), value)
    return merged
