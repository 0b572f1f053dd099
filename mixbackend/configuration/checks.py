"""What spans several keys, and what is not built yet.

Place: run on plain data by ``load`` (so that all problems come at once, also beside wrong values) and by ``Config``
itself when it is made directly.
Input: the configuration as mappings, lists and scalars, in any state. Output: (path, message) pairs.
Invariants: never raises on malformed data; what pydantic says already is not said again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mixbackend.configuration.problems import Path
from mixbackend.configuration.rules import ACTIONS
from mixbackend.nearest_name import did_you_mean
from mixbackend.registry import FALLBACK

Found = list[tuple[Path, str]]

NOT_BUILT: tuple[tuple[Path, Collection[Any], str], ...] = ((("objective",), ("memory",), "write 'latency'"),)
"""Values of the schema with a feature that is still to come: where, which, and what to write instead."""


def find_problems(data: Any) -> Found:
    """Everything wrong between keys."""
    if not isinstance(data, Mapping):
        return []
    return _not_built(data) + _rules(data) + _lock(data) + _objective(data)


def unknown_backends(data: Any, known: Collection[str]) -> Found:
    """Names of backends that are not registered."""
    if not isinstance(data, Mapping):
        return []
    named: list[tuple[Path, Any]] = [
        (("backends", index), name) for index, name in enumerate(_list(data.get("backends")))
    ]
    for index, rule in enumerate(_list(data.get("rules"))):
        if isinstance(rule, Mapping):
            named += [(("rules", index, action), rule[action]) for action in ACTIONS if action in rule]
    minimum = data.get("min_region")
    named += [(("min_region", name), name) for name in minimum] if isinstance(minimum, Mapping) else []
    return [
        (path, f"no backend is called {name!r}; {did_you_mean(name, known)}")
        for path, name in named
        if isinstance(name, str) and name and name not in known
    ]


def _not_built(data: Mapping[str, Any]) -> Found:
    found: Found = []
    for path, values, instead in NOT_BUILT:
        value = _at(data, path)
        if any(value is refused or (isinstance(value, str) and value == refused) for refused in values):
            found.append((path, f"{value!r} is not built yet; {instead}"))
    return found


def _lock(data: Mapping[str, Any]) -> Found:
    if _at(data, ("lock", "frozen")) is not True or _at(data, ("lock", "path")) is not None:
        return []
    return [(("lock", "frozen"), "needs the file that is frozen; write lock.path too")]


def _objective(data: Mapping[str, Any]) -> Found:
    if _at(data, ("objective",)) != "compile_time" or _at(data, ("search", "mode")) != "measure":
        return []
    return [(("objective",), "'compile_time' does not go with search.mode 'measure', which compiles many candidates")]


def _rules(data: Mapping[str, Any]) -> Found:
    found: Found = []
    allowed = data.get("backends")
    for index, rule in enumerate(_list(data.get("rules"))):
        if not isinstance(rule, Mapping):
            continue
        path: Path = ("rules", index)
        actions = [action for action in ACTIONS if rule.get(action) is not None]
        if len(actions) != 1:
            given = f"it has {' and '.join(actions)}" if actions else "it has none"
            found.append((path, f"a rule needs exactly one of prefer, require and forbid; {given}"))
        if rule.get("factor") is not None and "prefer" not in actions:
            found.append(((*path, "factor"), "goes with prefer only: require and forbid are absolute"))
        required = rule.get("require")
        if isinstance(required, str) and isinstance(allowed, (list, tuple)) and required not in (*allowed, FALLBACK):
            found.append(((*path, "require"), f"requires {required!r}, which backends leaves out"))
    return found


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _at(data: Any, path: Path) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data
